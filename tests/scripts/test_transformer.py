"""``transformer.py`` gives equal logits with both attentions; ``eager_benchmark.py`` writes its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.running import Run


def test_without_a_gpu_torch_computes_both_and_logits_are_equal(run: Run, tmp_path: Path) -> None:
    done = run("transformer.py", "--device", "cpu", "--tokens", "16", "--causal", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["largest_logit"] > 0.5
    assert report["largest_difference"] <= 2e-3
    assert "the tensors are not on a GPU" in report["served_by"]
    assert report["ways"] == {}


def test_page_from_stored_results(run: Run, tmp_path: Path) -> None:
    host = {"sdpa": 18.0, "evoengine": 9.0, "evoengine, the op": 12.0}
    host |= {"sdpa, compiled": 50.0, "evoengine, compiled": 40.0}
    model: dict[str, Any] = {"layers": 2, "tokens": 512, "causal": True}
    model |= {
        "largest_logit": 3.0,
        "largest_difference": 2e-3,
        "served_by": "champion 7\n  family mma",
        "ways": {"CUDA graph": {"sdpa": 99.0, "evoengine": 88.0}},
        "host": {"CUDA graph": {"sdpa": 8.0, "evoengine": 7.0}},
    }
    report: dict[str, Any] = dict.fromkeys(("torch", "python", "evoengine", "date", "command"), "x")
    problem = {"problem": "1x8x512x64-fp16", "host_us": host, "graph_device_us": {"sdpa": 9.9, "evoengine": 4.5}}
    report |= {"gpu": "NVIDIA X", "problems": [problem], "transformers": [model]}
    (tmp_path / "eager.json").write_text(json.dumps(report))
    done = run("eager_benchmark.py", "--from-json", "eager.json", "--out", "page", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[0] == "# Calls from Python on NVIDIA X"
    assert "| 1x8x512x64-fp16 | host, eager | 18.00 | 9.00 | 0.50 |" in lines
    assert "|  | device, CUDA graph | 9.90 | 4.50 | 0.45 |" in lines
    assert "| CUDA graph | 99.0 | 88.0 | 1.12 | 8.0 | 7.0 |" in lines
    assert lines[-2:] == ["    champion 7", "      family mma"]


@pytest.mark.gpu
def test_benchmark_on_a_gpu(run: Run, tmp_path: Path) -> None:
    few = ("--problems", "short", "--calls", "20", "--rounds", "3", "--out", str(tmp_path / "report"))
    done = run("eager_benchmark.py", *few, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [model["causal"] for model in report["transformers"]] == [False, True]
    for model in report["transformers"]:
        assert set(model["ways"]) >= {"eager", "torch.compile", "CUDA graph"}
    assert all(us > 0 for us in report["problems"][0]["host_us"].values())
