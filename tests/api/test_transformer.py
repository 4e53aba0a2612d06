"""The transformer of scripts/: swapping its attention leaves the logits as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_without_a_gpu_torch_serves_and_the_logits_are_the_same(tmp_path: Path) -> None:
    done = run("transformer.py", "--device", "cpu", "--tokens", "16", "--causal", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["largest_logit"] > 0.5
    assert report["largest_difference"] <= 2e-3
    assert "the tensors are not on a GPU" in report["served_by"]
    assert report["ways"] == {}


@pytest.mark.gpu
def test_the_benchmark_runs(tmp_path: Path) -> None:
    few = ("--problems", "short", "--calls", "20", "--rounds", "3", "--json", str(tmp_path / "report.json"))
    done = run("eager_benchmark.py", *few, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["transformer"]["ways"]) >= {"eager", "torch.compile", "CUDA graph"}
    assert all(us > 0 for us in report["problems"][0]["host_us"].values())
