"""How much the current verb prints, set by ``--quiet`` and ``--verbose``, and lines that depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.cli.output.echo import echo
from evoengine.system.files import names_stdout


@dataclass(frozen=True)
class Verbosity:
    """How much a verb prints."""

    quiet: bool = False
    verbose: bool = False


_CURRENT: Final[ContextVar[Verbosity]] = ContextVar("verbosity", default=Verbosity())  # noqa: B039 - it is frozen


def is_quiet() -> bool:
    """Whether the current verb was called with ``--quiet``."""
    return _CURRENT.get().quiet


def is_verbose() -> bool:
    """Whether the current verb was called with ``--verbose``."""
    return _CURRENT.get().verbose


@contextmanager
def printing_with(verbosity: Verbosity) -> Iterator[None]:
    """Applies a verbosity to all that is printed inside the context."""
    token = _CURRENT.set(verbosity)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def say(text: str) -> None:
    """Prints a line that ``--quiet`` leaves out."""
    if not is_quiet():
        echo(text)


def say_wrote(path: Path, text: str) -> None:
    """Prints a line about a file that was written, unless the file is the standard output itself."""
    if not names_stdout(path):
        say(text)


def note(text: str) -> None:
    """Prints a note on stderr, unless it is empty or ``--quiet`` is given."""
    if text and not is_quiet():
        echo(f"note: {text}", err=True)


def warn(text: str) -> None:
    """Prints a warning on stderr."""
    echo(f"warning: {text}", err=True)
