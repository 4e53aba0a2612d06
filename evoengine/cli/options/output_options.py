"""Options of ``search`` that change only its output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from evoengine.engine.options.fields import Json, Option, Panel
from evoengine.errors import UsageError


@dataclass(frozen=True)
class OutputOptions:
    """Output of a search: what is printed and logged.

    Raises:
        UsageError: Two options contradict each other.
    """

    json_output: Json = False
    quiet: Annotated[
        bool, Option("Print no progress, only the result.", names=("--quiet", "-q"), panel=Panel.OUTPUT)
    ] = False
    verbose: Annotated[bool, Option("Print one line per candidate.", names=("--verbose", "-v"), panel=Panel.OUTPUT)] = (
        False
    )
    log: Annotated[
        Path | None,
        Option("JSON Lines log to write. [default: in the user's state folder]", panel=Panel.OUTPUT),
    ] = None
    no_log: Annotated[bool, Option("Write no log.", panel=Panel.OUTPUT)] = False

    def __post_init__(self) -> None:
        for one, other, both in (
            ("--quiet", "--verbose", self.quiet and self.verbose),
            ("--log", "--no-log", self.no_log and self.log is not None),
        ):
            if both:
                raise UsageError(f"{one} and {other} are opposite options: give one of them")
