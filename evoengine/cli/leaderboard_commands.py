"""Command-line options of ``leaderboard`` and its sub-verbs; ``verbs/leaderboard.py`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from evoengine.cli.options.help_panels import PanelGroup
from evoengine.cli.options.parameters import command, with_options
from evoengine.cli.options.verbosity_options import takes_verbosity
from evoengine.engine.options.fields import Database, Json, Option
from evoengine.engine.options.search import DEFAULT_DB
from evoengine.engine.options.verbs import RowChoice, RowExportOptions, RowQuery
from evoengine.errors import UsageError

leaderboard_app = typer.Typer(
    cls=PanelGroup,
    help="Show the leaderboard, or everything about one row.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

_SHARED: Final = frozenset(("db", "json_output", "quiet", "verbose"))
"""Parameters that may also be given before a sub-verb."""
_OwnDatabase = Annotated[str | None, Option("Leaderboard: a file, or a postgresql+psycopg://… URL.", names=("--db",))]


@leaderboard_app.callback(invoke_without_command=True)
@takes_verbosity
@with_options
def leaderboard(
    context: typer.Context,
    query: RowQuery,
    db: Database = DEFAULT_DB,
    json_output: Json = False,
    watch: Annotated[bool, Option("Refresh the table during a search, until Ctrl-C.")] = False,
) -> None:
    """Show the leaderboard: fastest correct kernels first, one ranking per problem and device."""
    if context.invoked_subcommand is not None:
        return
    if watch:
        from evoengine.cli.output.live_leaderboard import watch_rows

        watch_rows(db, query, json_output=json_output)
        return
    from evoengine.cli.verbs.leaderboard import list_rows

    list_rows(db, query, json_output=json_output)


@command(leaderboard_app)
def show(
    context: typer.Context,
    choice: RowChoice,
    source: Annotated[bool, Option("Print only the source of the kernel.")] = False,
    db: _OwnDatabase = None,
    json_output: Json = False,
) -> None:
    """Show one row on one screen: verdict, resources, times, config, lineage."""
    from evoengine.cli.verbs.leaderboard import show_row

    _refuse_ignored(context)
    as_json = json_output or _inherited(context, None, "json_output")
    show_row(_inherited(context, db, "db"), choice, source=source, json_output=as_json)


@command(leaderboard_app)
def export(context: typer.Context, options: RowExportOptions, db: _OwnDatabase = None) -> None:
    """Write rows for other programs; rbk and robust-kbench write a folder."""
    from evoengine.cli.verbs.exchange import export_rows

    _refuse_ignored(context)
    export_rows(_inherited(context, db, "db"), options)


@command(leaderboard_app, "import")
def import_(
    context: typer.Context,
    file: Annotated[Path, Option("Leaderboard as JSON or CSV, or T4 results.", metavar="FILE", positional=True)],
    db: _OwnDatabase = None,
    family: Annotated[str | None, Option("Kernel family of T4 results, which do not name it.")] = None,
    json_output: Json = False,
) -> None:
    """Import configs as starts: they are not ranked, and the next search for their problem tries them first."""
    from evoengine.cli.verbs.exchange import import_rows

    _refuse_ignored(context)
    as_json = json_output or _inherited(context, None, "json_output")
    import_rows(_inherited(context, db, "db"), file, family, json_output=as_json)


def _refuse_ignored(context: typer.Context) -> None:
    """Refuses options before a sub-verb that only the ranking has, which would be ignored.

    Raises:
        UsageError: One is given.
    """
    parent: Any = context.parent
    for parameter in parent.command.params:
        if parameter.name not in _SHARED and _is_given(parent, parameter.name):
            raise UsageError(f"{max(parameter.opts, key=len)} stands before '{context.info_name}': give it after that")


def _inherited(context: typer.Context, value: Any, name: str) -> Any:
    """The value of an option, which may also be given before the sub-verb; either wins over a file of defaults."""
    parent = context.parent
    if parent is None or _is_given(context, name):
        return value
    return parent.params[name] if _is_given(parent, name) or not value else value


def _is_given(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
