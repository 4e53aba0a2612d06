"""Lines on the terminal: stored texts cannot move the cursor, change colours or reorder what is shown."""

from __future__ import annotations

import logging

import typer

from evoengine.documents.escaping import printable, printable_lines
from evoengine.errors import short_line


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


class EchoHandler(logging.Handler):
    """Prints log messages as lines on stderr: they may repeat names and texts of files."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one message."""
        echo(record.getMessage(), err=True)


def one_line(text: str) -> str:
    """Escapes all characters that are not printable, but for line ends at the beginning."""
    line = text.lstrip("\n")
    return text[: len(text) - len(line)] + printable(line)


def echo_error(message: str) -> None:
    """Prints an error as one line of less than 300 characters on stderr."""
    echo(f"error: {short_line(message)}", err=True)
