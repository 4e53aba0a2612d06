"""Output: rich on a terminal, plain text elsewhere; one JSON document; plain tables."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evoengine.cli.output.echo import echo_lines, one_line
from evoengine.cli.output.verbosity import is_quiet
from evoengine.documents.escaping import printable_lines

_PLAIN_WIDTH: Final = 2000
"""Columns of output that is no terminal: wide enough that no line of a table is broken."""


class _SafeConsole(Console):
    """Console that takes texts as they are: no markup, no emoji codes, control characters escaped."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects; a text is one line, which empty lines may precede."""
        super().print(*(one_line(item) if isinstance(item, str) else item for item in objects), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Converts a text, of a line or of a table's cell, for output."""
        return super().render_str(printable_lines(text), **{**options, "markup": False, "emoji": False})


def make_console(*, stderr: bool = False) -> Console:
    """A console for stdout or stderr. ``NO_COLOR`` and pipes get no control codes; ``--quiet`` silences stderr."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    quiet = stderr and is_quiet()
    return _SafeConsole(stderr=stderr, width=width, highlight=False, soft_wrap=not stream.isatty(), quiet=quiet)


def print_table(console: Console, table: Table) -> None:
    """Prints a table without the trailing blanks that rich adds."""
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))  # with the colours of the console


def command_name() -> str:
    """The command that started this program, for messages; a wrapper script sets ``EVOENGINE_COMMAND``."""
    installed = Path(sys.argv[0]).name == "evoengine"
    return os.environ.get("EVOENGINE_COMMAND") or ("evoengine" if installed else "python -m evoengine")


def print_json(document: Any) -> None:
    """Prints one JSON document; infinities and NaN, which JSON lacks, become null."""
    echo_lines(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
