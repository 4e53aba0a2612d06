"""``--quiet`` and ``--verbose``: the same on every verb.

Quiet leaves out what only accompanies: progress, and lines like *wrote best.cu*. Results, warnings and errors stay.
Verbose adds to stderr which options were given, and where, and how long the verb took.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from evoengine.errors import UsageError

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say which options are in force, and the time taken.")]

_PLACES: Final = {"COMMANDLINE": "command line", "DEFAULT_MAP": "file of defaults", "ENVIRONMENT": "environment"}


@dataclass(frozen=True)
class Verbosity:
    """How much a verb says."""

    quiet: bool = False
    verbose: bool = False


_CURRENT: Final[ContextVar[Verbosity]] = ContextVar("loudness", default=Verbosity())  # noqa: B039 - it is frozen


def is_quiet() -> bool:
    """Whether the verb under way was asked to be quiet."""
    return _CURRENT.get().quiet


def say(text: str) -> None:
    """Prints a line that only accompanies."""
    if not is_quiet():
        typer.echo(text)


def takes_verbosity(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb ``--quiet`` and ``--verbose``; those said before its own word (``leaderboard -q show 1``) count.

    Raises:
        UsageError: both are given.
    """
    own = inspect.signature(verb, eval_str=True)

    @functools.wraps(verb)
    def call(context: typer.Context, quiet: bool, verbose: bool, **arguments: Any) -> None:
        before = context.parent.params if context.parent is not None else {}
        loudness = Verbosity(quiet or bool(before.get("quiet")), verbose or bool(before.get("verbose")))
        if loudness.quiet and loudness.verbose:
            raise UsageError("--quiet and --verbose say opposite things: give one of them")
        if "context" in own.parameters:
            arguments["context"] = context
        is_group = context.invoked_subcommand is not None
        with _speaking(loudness, context, told=loudness.verbose and not is_group):
            verb(**arguments)

    shared = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
    ]
    rest = [item.replace(kind=item.KEYWORD_ONLY) for name, item in own.parameters.items() if name != "context"]
    call.__signature__ = own.replace(parameters=[shared[0], *rest, *shared[1:]])  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in (*shared, *rest)}
    return call


@contextmanager
def _speaking(loudness: Verbosity, context: typer.Context, *, told: bool) -> Iterator[None]:
    token, start_s = _CURRENT.set(loudness), time.monotonic()
    try:
        if told:
            for name, value in sorted(context.params.items()):
                place = getattr(context.get_parameter_source(name), "name", "")
                if place in _PLACES and name not in ("quiet", "verbose"):
                    typer.echo(f"{name.removesuffix('_output')} = {value} ({_PLACES[place]})", err=True)
        yield
    finally:
        _CURRENT.reset(token)
        if told:
            typer.echo(f"took {time.monotonic() - start_s:.2f} s", err=True)
