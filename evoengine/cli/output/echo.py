"""Lines on the terminal: stored texts cannot move the cursor, change colours or reorder what is shown."""

from __future__ import annotations

from typing import Final

import typer

from evoengine.documents.escaping import printable, printable_lines

_LONGEST_ERROR: Final = 1000
"""Maximum number of characters of an error; names in a file can be of any length."""


def echo(text: str, *, err: bool = False) -> None:
    """Prints a line with escaped control characters, so that a stored text cannot add another line.

    Args:
        text: Line; empty lines may precede it.
        err: Whether to print on stderr.
    """
    typer.echo(one_line(text), err=err)


def echo_lines(text: str, *, err: bool = False) -> None:
    """Prints text of several lines with escaped control characters; line ends and tabs stay."""
    typer.echo(printable_lines(text), err=err)


def one_line(text: str) -> str:
    """Escapes all characters that are not printable, but for line ends at the beginning."""
    line = text.lstrip("\n")
    return text[: len(text) - len(line)] + printable(line)


def echo_error(message: str) -> None:
    """Prints an error as one line on stderr."""
    line = " ".join(message.split())
    echo(f"error: {line if len(line) <= _LONGEST_ERROR else line[: _LONGEST_ERROR - 1] + '…'}", err=True)
