"""``sample_configs.py gate``, which runs sampled configs of a family through the gate, on a small sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import environment
from tests.warm import WarmPython

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts/measure/sample_configs.py")


@pytest.mark.parametrize(
    ("family", "problems", "count", "rows"),
    [
        ("mma", ["d8", "everything"], 2, ["| d8 | 1 |", "| everything | 1 |", "| all | 2 |"]),
        ("scalar", ["d32", "everything"], 1, ["| d32 | 1 |", "| all | 1 |"]),  # scalar does not support all features
    ],
)
def test_a_sample_passes_and_is_counted(
    warm: WarmPython, shared_cache: Path, family: str, problems: list[str], count: int, rows: list[str]
) -> None:
    words = ["gate", f"--family={family}", f"--count={count}", "--jobs=1", "--archs", "sm_80", "--problems", *problems]
    words += ["--every-case"] * (family == "scalar")
    done = warm.run(SCRIPT, words, ROOT, environment(shared_cache))
    assert done.code == 0, done.err
    assert f"{family} on NVIDIA L4" in done.out
    assert all(row in done.out for row in rows), done.out


def test_an_unsupported_family_is_an_error(warm: WarmPython, shared_cache: Path) -> None:
    done = warm.run(SCRIPT, ["gate", "--family=wgmma", "--count=1", "--jobs=1"], ROOT, environment(shared_cache))
    assert done.code == 2
    assert "wgmma supports none of these problems on sm_89" in done.err
