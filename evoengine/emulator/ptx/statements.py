"""A body of PTX, split into statements: instructions, directives, labels and scopes."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Final

_LABEL: Final = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")


_NOT_PLAIN: Final = frozenset("{}$%_" + string.ascii_uppercase)
"""What a line does not begin with that is one whole instruction or directive."""


def split_statements(body: str, first_line: int) -> Iterator[tuple[str, int]]:
    """Splits a body into statements: instructions and directives without ``;``, labels with ``:``, scopes ``{ }``."""
    pending, start = "", first_line
    for number, raw in enumerate(body.split("\n"), first_line):
        line = raw.strip()
        if not line:
            continue
        plain = line[0] not in _NOT_PLAIN and line.find(";") == len(line) - 1
        if plain and not pending and (":" not in line or not _LABEL.match(line)):  # mostly: no further scanning
            yield line[:-1], number
            continue
        if not pending and line.startswith((".loc ", ".loc\t", ".file")):
            yield line, number
            continue
        if not pending:
            start = number
        pending = f"{pending} {line}".lstrip()
        while pending:
            label = _LABEL.match(pending)
            if pending[0] in "{}":
                yield pending[0], start
                pending = pending[1:].lstrip()
            elif label:
                yield label.group(1) + ":", start
                pending = pending[label.end() :].lstrip()
            elif ";" in pending:
                statement, _, pending = pending.partition(";")
                pending = pending.lstrip()
                if statement.strip():
                    yield statement.strip(), start
            else:
                break
