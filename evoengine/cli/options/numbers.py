"""Numbers of the command line: strict spelling, bounds, and errors that state both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from evoengine.documents.bounds import MAX_INT
from evoengine.documents.plain_numbers import parse_number, parse_whole
from evoengine.engine.options.fields import Option


def number_parser(kind: Any, option: Option) -> Callable[[Any], Any] | None:
    """Returns the parser of one value of a numeric option; None for other options.

    Args:
        kind: Type of one value.
        option: Bounds of the value.
    """
    if kind not in (int, float):
        return None
    most = MAX_INT if kind is int else sys.float_info.max  # no infinity: neither durations nor budgets may be endless
    low, high = -most if option.min is None else option.min, most if option.max is None else option.max

    def parse(value: Any) -> Any:
        """Parses a text; values of other types are defaults, of the code or of a file."""
        try:
            number = value if not isinstance(value, str) else parse_whole(value) if kind is int else parse_number(value)
        except ValueError as error:
            raise typer.BadParameter(f"{error}: give {_description(kind, option)}") from None
        if not low <= number <= high:
            raise typer.BadParameter(f"{value} is out of range: give {_description(kind, option)}")
        return kind(number)

    return parse


def _description(kind: Any, option: Option) -> str:
    words = "a whole number" if kind is int else "a finite number"
    match option.min, option.max:
        case None, None:
            return words
        case low, None:
            return f"{words} of at least {low}"
        case None, high:
            return f"{words} of at most {high}"
        case low, high:
            return f"{words} from {low} to {high}"
