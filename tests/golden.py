"""Comparison of generated text with a file that is kept in the repository."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
UPDATE: Final = "EVOENGINE_UPDATE_GOLDEN"
"""Environment variable that makes the tests rewrite their golden files instead of comparing them."""
_MOST_LINES: Final = 120
"""Maximum number of lines of a difference that a failing test prints."""


def assert_golden(path: Path, text: str) -> None:
    """Compares a text with a golden file, and rewrites the file where :data:`UPDATE` is 1.

    Raises:
        AssertionError: The texts differ; the message is a unified diff and the command that updates the file.
    """
    if os.environ.get(UPDATE) == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != golden:
        raise AssertionError(difference(path, golden, text))


def difference(path: Path, golden: str, text: str) -> str:
    """Returns the message of a failing golden test: a unified diff of limited length, and how to update it."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    lines = list(
        difflib.unified_diff(golden.splitlines(), text.splitlines(), f"{name} (golden)", f"{name} (now)", lineterm="")
    )
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"... and {len(lines) - _MOST_LINES} more lines of the difference"]
    shown = "\n".join(lines) or "the files differ only in the line end of the last line"
    test = os.environ.get("PYTEST_CURRENT_TEST", "tests").partition("::")[0]
    return f"{name} differs from what is generated now:\n{shown}\nto accept it: {UPDATE}=1 ./scripts/test {test}"
