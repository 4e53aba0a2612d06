"""Fields of records of options: help texts, bounds and names on the command line, and the fields that records share.

A record of options is a frozen dataclass. A field that users can set carries an :class:`Option`; the command line turns
it into ``--field-name``.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

from evoengine.engine.options import choices
from evoengine.errors import UsageError


class Panel(enum.StrEnum):
    """Sections of a verb's help, in the order in which they are printed."""

    OWN = "Options"
    """Options that only this verb has."""
    PROBLEM = "Problem"
    SEARCH = "Search"
    DEVICE = "Device"
    ACCEPTANCE = "Acceptance"
    OUTPUT = "Output"


@dataclass(frozen=True)
class Option:
    """Command-line side of a field: help text, bounds, names and place in the help.

    Within its panel an option is printed in the order of the fields, so the most used one is declared first.
    """

    help: str
    min: float | None = None
    max: float | None = None
    metavar: str | None = None
    names: tuple[str, ...] = ()
    """Option names; empty for one made of the field's name."""
    positional: bool = False
    panel: Panel = Panel.OWN
    values: Callable[[], Iterable[str]] | None = None
    """Values that the shell completes; None for none."""
    several: bool = False
    """Whether values may be joined by commas."""


@dataclass(frozen=True)
class OptionGroup:
    """Marks a field whose value is built by a method of another record of options."""

    record: type
    method: str = "build"


Family = Annotated[
    str,
    Option(
        "Kernel family, comma-separated families, or auto for all that support the problem.",
        metavar="NAME,…",
        panel=Panel.SEARCH,
        values=choices.families,
        several=True,
    ),
]
SpaceFile = Annotated[
    Path | None,
    Option("Search-space file. [default: the family's own]", names=("--space",), panel=Panel.SEARCH),
]
TargetName = Annotated[
    str,
    Option("GPU to predict for on the emulator.", metavar="NAME", panel=Panel.DEVICE, values=choices.targets),
]
Arch = Annotated[
    str,
    Option(
        "Architecture to compile for, such as sm_89. [default: the device's]",
        metavar="SM",
        panel=Panel.DEVICE,
        values=choices.architectures,
    ),
]
Workers = Annotated[int, Option("Compile processes, 0 for one per core.", min=0, panel=Panel.DEVICE)]
ColdL2 = Annotated[bool, Option("Flush the L2 cache before each timed call (cuda only).", panel=Panel.DEVICE)]
Database = Annotated[
    str, Option("Leaderboard: a file, or a postgresql+psycopg://… URL.", names=("--db",), panel=Panel.OUTPUT)
]
TrustSource = Annotated[
    bool,
    Option("Use the stored source even if it cannot be verified; read it first with 'leaderboard show --source'."),
]
Force = Annotated[bool, Option("Overwrite existing files.", names=("--force", "-f"), panel=Panel.OUTPUT)]
Json = Annotated[bool, Option("Print JSON.", names=("--json",), panel=Panel.OUTPUT)]


_KINDS: Final[Mapping[type, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "True or False"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    Path: ((Path,), "a Path"),
}
"""Accepted types of a field of each type, and their name in messages."""
_SHOWN: Final = 40
"""Characters of a refused text that a message repeats."""
_MOST: Final = 2**63 - 1
"""Largest whole number; SQLite stores no larger one."""


def check_fields(record: object) -> None:
    """Checks the fields of a record of options that carry an :class:`Option`: their types and bounds.

    The command line has checked them already; a record may also be made in Python.

    Raises:
        UsageError: A field has another type, or is out of its bounds.
    """
    kind: Any = type(record)
    for name, hint in _hints(kind).items():
        option = next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Option)), None)
        if option is None:
            continue
        kinds = [kind for kind in (get_args(get_args(hint)[0]) or (get_args(hint)[0],)) if kind is not type(None)]
        value, optional = getattr(record, name), type(None) in get_args(get_args(hint)[0])
        if kinds[0] in _KINDS and not (value is None and optional):
            _check_field(name, value, kinds[0], option)


@cache
def _hints(record: type) -> Mapping[str, Any]:
    return get_type_hints(record, include_extras=True)


def _check_field(name: str, value: object, kind: type, option: Option) -> None:
    allowed, words = _KINDS[kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{name} must be {words}, not a {type(value).__name__}")
    if kind in (str, Path) and not _is_argument(str(value)):
        text = ascii(str(value)[:_SHOWN])
        raise UsageError(f"{name} must be {words} without NUL and halves of surrogate pairs, not {text}")
    if not isinstance(value, int | float) or kind is bool:
        return
    low, high = option.min, option.max if option.max is not None else _MOST if kind is int else None
    if kind is float and not abs(value) <= sys.float_info.max:  # math.isfinite fails for 10**400
        raise UsageError(f"{name} must be a finite number")
    if (low is not None and value < low) or (high is not None and value > high):
        limits = f"from {low} to {high}" if low is not None and high is not None else f"of at least {low}"
        shown = value if abs(value) <= sys.float_info.max else "one of over 300 digits"  # Python prints 4300 at most
        raise UsageError(f"{name} must be {words} {limits}, not {shown}")


def _is_argument(text: str) -> bool:
    """Whether a text could come from the command line, and thus name a file."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return "\0" not in text
