"""Checks the writing rules on all Python text and Markdown pages, and that the check finds what breaks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import ROOT
from tests.docs.language import findings

GENERATED = "api.md"
"""Its lines are links as long as their targets; its text comes from docstrings, which are checked themselves."""
PROSE = (
    *(ROOT / name for name in ("evoengine", "tests", "scripts", "README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != GENERATED),
)
SAMPLES = Path(__file__)
"""Holds the texts below, which break the rules."""


def test_all_text_keeps_the_writing_rules() -> None:
    found = [finding for finding in findings(PROSE) if finding.path != SAMPLES]
    assert list(map(str, found)) == []


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("a.py", '"""Whose file it is."""\n', "turned-round"),
        ("a.py", "def f():\n    # Likewise for the rest.\n    return 1\n", "turned-round"),
        ("a.py", 'def f(x):\n    """Does it.\n\n    Args:\n        x: what to do.\n    """\n', "noun phrase"),
        ("a.py", 'raise ValueError("no such road here")\n', "'road"),
        ("a.py", f"x = {'1' * 120}\n", "wider than 120"),
        ("a.md", "The search crowns a row.\n", "'crowns'"),
        ("a.md", f"{'word ' * 27}\n", "wider than 130"),
    ],
)
def test_text_that_breaks_a_rule_is_found(tmp_path: Path, name: str, text: str, rule: str) -> None:
    page = tmp_path / name
    page.write_text(text.replace("road", "roads"))
    assert [finding.rule for finding in findings([page]) if rule in finding.rule]


def test_code_and_quoted_events_are_not_prose(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("The event `crowned` is written once.\n\n```\nnobody reads this\n```\n")
    assert list(findings([page])) == []
