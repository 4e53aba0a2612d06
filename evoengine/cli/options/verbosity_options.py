"""``--quiet`` and ``--verbose``, with the same meaning on every verb.

Quiet leaves out progress and lines like *wrote best.cu*; results, warnings and errors stay. Verbose prints on stderr
which options are set, where they were set, and how long the verb took.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from evoengine.cli.options.config_file import without_credentials
from evoengine.cli.output.echo import echo
from evoengine.cli.output.verbosity import Verbosity, printing_with
from evoengine.engine.options.fields import Panel
from evoengine.errors import UsageError, short_line

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only results, warnings and errors.", rich_help_panel=Panel.OUTPUT),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print the options in force and the time taken.", rich_help_panel=Panel.OUTPUT
    ),
]

_SOURCES: Final = {"COMMANDLINE": "command line", "DEFAULT_MAP": "file of defaults", "ENVIRONMENT": "environment"}


def takes_verbosity(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb ``--quiet`` and ``--verbose``, which also count before a sub-verb (``leaderboard -q show 1``).

    Raises:
        UsageError: Both are given.
    """
    own = inspect.signature(verb, eval_str=True)

    @functools.wraps(verb)
    def _call(context: typer.Context, quiet: bool, verbose: bool, **arguments: Any) -> None:
        before = context.parent.params if context.parent is not None else {}
        verbosity = Verbosity(quiet or bool(before.get("quiet")), verbose or bool(before.get("verbose")))
        if verbosity.quiet and verbosity.verbose:
            raise UsageError("--quiet and --verbose are opposite options: give one of them")
        if "context" in own.parameters:
            arguments["context"] = context
        is_group = context.invoked_subcommand is not None
        with _applied(verbosity, context, report=verbosity.verbose and not is_group):
            verb(**arguments)

    shared = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
    ]
    rest = [item.replace(kind=item.KEYWORD_ONLY) for name, item in own.parameters.items() if name != "context"]
    _call.__signature__ = own.replace(parameters=[shared[0], *rest, *shared[1:]])  # type: ignore[attr-defined]
    _call.__annotations__ = {item.name: item.annotation for item in (*shared, *rest)}
    return _call


@contextmanager
def _applied(verbosity: Verbosity, context: typer.Context, *, report: bool) -> Iterator[None]:
    start_s = time.monotonic()
    try:
        with printing_with(verbosity):
            if report:
                _print_options(context)
            yield
    finally:
        if report:
            echo(f"took {time.monotonic() - start_s:.2f} s", err=True)


def _print_options(context: Any) -> None:
    """Prints each option that is not at its built-in default, with where it was set."""
    names = {parameter.name: max(parameter.opts, key=len).lstrip("-") for parameter in context.command.params}
    for name, value in sorted(context.params.items()):
        source = getattr(context.get_parameter_source(name), "name", "")
        if source in _SOURCES and name not in ("quiet", "verbose"):
            shown = without_credentials(name, value)
            echo(short_line(f"{names[name].replace('-', '_')} = {shown} ({_SOURCES[source]})"), err=True)
