"""Finds text that breaks the writing rules: docstrings, comments and messages of Python files, and Markdown prose.

Run it on files or folders: ``python -m tests.docs.language evoengine/space docs/shell.md``.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON_WIDTH: Final = 120
MARKDOWN_WIDTH: Final = 130

_BAD_START: Final = re.compile(r"(Of|Whose|Likewise|That|What|Who|Whom|As for)\b(?!-)")
"""How no docstring, comment or help text begins."""
_BAD_SENTENCE: Final = re.compile(r"(?:^|[.!?]\s+)(Of|Whose|Likewise)\s")
"""How no sentence begins."""
_BAD_ENTRY: Final = re.compile(r"^\s+\w+: (of|whose|likewise|that|what|who)\b")
"""How no entry of an ``Args`` section begins."""
_DENIED: Final = re.compile(
    r"\b(whoever|nobody|strangers?|roads?|houses?|dethron\w*|crown(?:s|ed|ing)?|rooms?|doors?|sabot\w*|hopeless|"
    r"foretell\w*|slivers?)\b",
    re.IGNORECASE,
)
_SUSPECT: Final = re.compile(
    r"\b(?:Of|Whose|Likewise)\b|[\"'](?:That|What|Who|Whom|As for)\b|\w: (?:of|whose|likewise|that|what|who)\b",
)
"""Occurs with :data:`_DENIED` in every Python file whose prose breaks a rule: most files need not be parsed."""
_PROPER: Final = re.compile(r"`[^`]*`|\"crowned\"|'crowned'|https?://\S+")
"""Parts of a text that are no prose: code, names of stored events, addresses."""
_CODE_BLOCK: Final = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text.strip()[:100]}"


def findings(paths: Iterable[Path]) -> Iterator[Finding]:
    """Checks files, and all Python and Markdown files below folders."""
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".py":
                yield from _python(file)
            elif file.suffix == ".md":
                yield from _markdown(file)


def _python(path: Path) -> Iterator[Finding]:
    source = path.read_text("utf-8")
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > PYTHON_WIDTH:
            yield Finding(path, number, f"wider than {PYTHON_WIDTH}", line)
    if _SUSPECT.search(source) or _DENIED.search(source):
        for number, text, begins in _texts(source):
            yield from _prose(path, number, text, begins=begins)


def _texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether the text is a docstring: its first word is checked too."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# "), False
    docstrings = set()
    for node in ast.walk(ast.parse(source)):  # a statement comes before the constant in it
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(node.value)
            yield node.lineno, node.value.value, True
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings
            and " " in node.value
        ):
            yield node.lineno, node.value, False


def _prose(path: Path, number: int, text: str, *, begins: bool) -> Iterator[Finding]:
    if begins and _BAD_START.match(text):
        yield Finding(path, number, "docstring begins with a turned-round clause", text)
    for offset, line in enumerate(text.splitlines()):
        plain = _PROPER.sub("", line)
        if begins and _BAD_ENTRY.match(line):
            yield Finding(path, number + offset, "entry is no noun phrase", line)
        if _BAD_SENTENCE.search(plain):
            yield Finding(path, number + offset, "sentence begins with a turned-round clause", line)
        if found := _DENIED.search(plain):
            yield Finding(path, number + offset, f"'{found.group()}'", line)


def _markdown(path: Path) -> Iterator[Finding]:
    source = path.read_text("utf-8")
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > MARKDOWN_WIDTH and not line.startswith("|") and " " in line.strip():
            yield Finding(path, number, f"wider than {MARKDOWN_WIDTH}", line)
    prose = _CODE_BLOCK.sub(lambda block: "\n" * block.group().count("\n"), source)
    yield from _prose(path, 1, prose, begins=False)


if __name__ == "__main__":
    found = list(findings(map(Path, sys.argv[1:])))
    print(*found, f"{len(found)} findings", sep="\n")
    sys.exit(bool(found))
