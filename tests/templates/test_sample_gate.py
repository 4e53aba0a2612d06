"""``sample_configs.py gate``, which runs sampled configs of a family through the gate, on a small sample."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GATE = (sys.executable, str(ROOT / "scripts/measure/sample_configs.py"), "gate")


@pytest.mark.parametrize(
    ("family", "problems", "rows"),
    [
        ("mma", ["d8", "everything"], ["| d8 | 1 |", "| everything | 1 |", "| all | 2 |"]),
        ("scalar", ["d32", "everything"], ["| d32 | 2 |", "| all | 2 |"]),  # scalar does not support all features
    ],
)
def test_a_sample_passes_and_is_counted(family: str, problems: list[str], rows: list[str]) -> None:
    command = [*GATE, f"--family={family}", "--count=2", "--jobs=1"]
    done = subprocess.run([*command, "--problems", *problems], check=True, capture_output=True, text=True, cwd=ROOT)
    assert f"{family} on NVIDIA L4" in done.stdout
    assert all(row in done.stdout for row in rows), done.stdout


def test_an_unsupported_family_is_an_error() -> None:
    command = [*GATE, "--family=wgmma", "--count=2", "--jobs=1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "wgmma supports none of these problems on sm_89" in done.stderr
