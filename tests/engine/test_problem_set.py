"""Sets of problems in TOML, and the suite of public models as one; rbk's files are in ``tests/interop``."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.engine.options.problem_set import read_problem_set
from evoengine.errors import WorkloadError
from evoengine.model import DType, Problem

SUITE = Path(__file__).parents[2] / "scripts/measure/models.toml"


def test_the_suite_of_models_is_a_set_of_problems() -> None:
    problems = read_problem_set(SUITE).problems
    assert len(problems) >= 30
    assert problems["vit-b-197"] == Problem(16, 12, 197, 64)
    assert problems["phi3-mini-2048"] == Problem(1, 32, 2048, 96, causal=True, dtype=DType.BF16)


def test_a_problem_without_a_name_has_its_key(tmp_path: Path) -> None:
    file = tmp_path / "set.toml"
    file.write_text('[[problems]]\nproblem = "1x2x64x64"\ncausal = true\n')
    assert read_problem_set(file).problems == {"1x2x64x64-fp16-causal": Problem(1, 2, 64, 64, causal=True)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("problems = [", "is no TOML"),
        ("", "problems"),
        ("problems = []", "problems: "),
        ('[[problems]]\nproblem = "1x2x64"', r"problems\[0\]: "),
        ('[[problems]]\nproblem = "1x2x64x64"\nweight = 2', r"problems\[0\].*weight"),
        ('[[problems]]\nproblem = "1x2x64x64"\nname = "a\\u001b[31m"', r"problems\[0\]\.name: "),
        ('[[problems]]\nproblem = "1x2x64x64"\nname = "a\\n"', r"problems\[0\]\.name: "),
        ('[[problems]]\nproblem = "1x2x64x64"\n' * 2, r"problems\[1\]\.name: .*earlier"),
        ('[[problems]]\nproblem = "1x2x64x64"\nkv_heads = 3', r"problems\[0\]: "),
    ],
)
def test_a_bad_set_is_refused_with_file_key_and_reason(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "set.toml"
    file.write_text(text)
    with pytest.raises(WorkloadError, match=says) as refusal:
        read_problem_set(file)
    assert "set.toml" in str(refusal.value)
    assert "\n" not in str(refusal.value)
