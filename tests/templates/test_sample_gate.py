"""``sample_configs.py gate``, which runs sampled configs of a family through the gate, on a small sample."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.calling import environment
from tests.warm import WarmPython

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts/measure/sample_configs.py")


@pytest.mark.thorough
@pytest.mark.parametrize("more", [[], ["--every-case"]], ids=["draw", "all"])
def test_a_sample_passes_its_cases_and_is_counted(warm: WarmPython, shared_cache: Path, more: list[str]) -> None:
    words = ["gate", "--family=mma", "--count=1", "--jobs=1", "--archs=sm_80", "--problems=bf16", *more]
    done = warm.run(SCRIPT, words, ROOT, environment(shared_cache))
    assert done.code == 0, done.err
    assert "mma on NVIDIA L4" in done.out
    assert all(row in done.out for row in ("| bf16 | 1 |", "| all | 1 |")), done.out


def test_an_unsupported_family_is_an_error(warm: WarmPython, shared_cache: Path) -> None:
    done = warm.run(SCRIPT, ["gate", "--family=wgmma", "--count=1", "--jobs=1"], ROOT, environment(shared_cache))
    assert done.code == 2
    assert re.search("wgmma .*sm_89", done.err)
