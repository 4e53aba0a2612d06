"""Parsing of device functions (``.func``) and of calls to them.

The parser inlines a function's body at each call, with separate registers, labels and local variables, so that the rest
of the emulator processes one entry without calls. Recursion and calls through pointers are therefore not supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from evoengine.emulator.ptx.declarations import parse_params
from evoengine.emulator.ptx.records import Param

ASSERT: Final = "__assertfail"
"""Function that ``assert`` calls; it does not return."""
_FUNCTION: Final = re.compile(r"\.func\s*(?:\(([^)]*)\))?\s*([\w$%]+)\s*(?:\(([^)]*)\))?([^{};]*)([{;])")
_CALL: Final = re.compile(r"(?:\(([^)]*)\)\s*,\s*)?([\w$%]+)\s*(?:,\s*\(([^)]*)\))?\s*(?:,\s*[\w$%]+)?$")


@dataclass(frozen=True)
class Function:
    """Device function that a module defines."""

    name: str
    results: tuple[Param, ...]
    params: tuple[Param, ...]
    start: int
    """Position of its opening brace in the text."""


@dataclass(frozen=True)
class FunctionCall:
    """Names in a ``call``: the function, its results and its arguments."""

    name: str
    results: tuple[str, ...]
    arguments: tuple[str, ...]


def find_functions(text: str) -> Iterator[Function]:
    """Finds the functions that a module defines; those that it only declares are omitted."""
    for match in _FUNCTION.finditer(text):
        results, name, params, _, end = match.groups()
        if end == "{":
            line = text.count("\n", 0, match.start()) + 1
            formal = parse_params(results or "", line), parse_params(params or "", line)
            yield Function(name, *formal, match.end() - 1)


def parse_call(operands: str) -> FunctionCall | None:
    """Parses ``(results), name, (arguments)``; None if the callee is not a name."""
    match = _CALL.match(operands.strip())
    if match is None:
        return None
    results, name, arguments = match.groups()
    return FunctionCall(name, _names(results), _names(arguments))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
