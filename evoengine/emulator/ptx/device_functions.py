"""Device functions (``.func``): where they lie in a module, and what a call names.

A function's body is written in the place of each call to it, with registers, labels and local variables of its own, so
the rest of the emulator sees one entry without calls. That is why a function may not call itself, and why calls through
pointers are not supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from evoengine.emulator.ptx.declarations import parse_params
from evoengine.emulator.ptx.records import Param

ASSERT: Final = "__assertfail"
"""What ``assert`` calls; it does not return."""
_FUNCTION: Final = re.compile(r"\.func\s*(?:\(([^)]*)\))?\s*([\w$%]+)\s*(?:\(([^)]*)\))?([^{};]*)([{;])")
_CALL: Final = re.compile(r"(?:\(([^)]*)\)\s*,\s*)?([\w$%]+)\s*(?:,\s*\(([^)]*)\))?\s*(?:,\s*[\w$%]+)?$")


@dataclass(frozen=True)
class Function:
    """A device function's text."""

    name: str
    results: tuple[Param, ...]
    params: tuple[Param, ...]
    start: int
    """Position of its opening brace."""


@dataclass(frozen=True)
class FunctionCall:
    """The operands of a ``call``, by name."""

    name: str
    results: tuple[str, ...]
    arguments: tuple[str, ...]


def find_functions(text: str) -> Iterator[Function]:
    """The functions that a module defines; those that it only declares are left out."""
    for match in _FUNCTION.finditer(text):
        results, name, params, _, end = match.groups()
        if end == "{":
            yield Function(name, parse_params(results or ""), parse_params(params or ""), match.end() - 1)


def parse_call(operands: str) -> FunctionCall | None:
    """Reads ``(results), name, (arguments)``; None where the callee is no name."""
    match = _CALL.match(operands.strip())
    if match is None:
        return None
    results, name, arguments = match.groups()
    return FunctionCall(name, _names(results), _names(arguments))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
