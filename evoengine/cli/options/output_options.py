"""How a search speaks: to people, to programs, and in its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from evoengine.cli.options import shared_options as options
from evoengine.errors import UsageError


@dataclass(frozen=True)
class OutputOptions:
    """The options of a search that change nothing but what it says."""

    json_output: bool = False
    quiet: bool = False
    """No progress."""
    verbose: bool = False
    """A line for every candidate."""
    log: Path | None = None
    """File of the log; None for that in the user's state folder."""
    no_log: bool = False


def chosen_voice(
    json_output: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="One line for every candidate.")] = False,
    log: Annotated[
        Path | None, typer.Option(help="Log for programs, JSON lines. [default: in the user's state folder]")
    ] = None,
    no_log: Annotated[bool, typer.Option("--no-log", help="Write no log.")] = False,
) -> OutputOptions:
    """The voice that the options name.

    Raises:
        UsageError: they say opposite things.
    """
    if (quiet and verbose) or (no_log and log is not None):
        raise UsageError("--quiet and --verbose, or --log and --no-log, say opposite things: give one of them")
    return OutputOptions(json_output, quiet, verbose, log, no_log)


takes_output_options = options.taking("voice", chosen_voice)
"""Gives a verb the options of :func:`chosen_voice` in place of its parameter ``voice``."""
