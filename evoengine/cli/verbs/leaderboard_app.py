"""``leaderboard`` and ``leaderboard show``: what was found, ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evoengine.cli.options import shared_options as options
from evoengine.cli.options.verbosity import takes_verbosity

leaderboard_app = typer.Typer(
    help="Show the leaderboard, or everything about one row.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@leaderboard_app.callback(invoke_without_command=True)
@takes_verbosity
def leaderboard(
    context: typer.Context,
    db: options.Database = options.DEFAULT_DB,
    problem: Annotated[str | None, typer.Option(help="Only this problem: a name, a shape or a key.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device: cuda, emulator, or part of a name.")] = None,
    status: Annotated[str, typer.Option(help="Only this status; 'all' for every one.")] = "ok",
    top: Annotated[int, typer.Option(min=1, help="Rows per ranking.")] = 10,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Only rows that no other beats in both time and energy.")
    ] = False,
    json_output: options.Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it while a search runs, until Ctrl-C.")] = False,
) -> None:
    """Show the leaderboard: fastest correct kernels first, one ranking per problem and device."""
    if context.invoked_subcommand is not None:
        return
    from evoengine.cli.verbs.leaderboard import RowQuery, list_rows

    if watch:
        from evoengine.cli.output.live_leaderboard import watch_rows

        watch_rows(db, RowQuery(problem, device, status, top, pareto), json_output=json_output)
        return
    list_rows(db, RowQuery(problem, device, status, top, pareto), json_output=json_output)


@leaderboard_app.command()
@takes_verbosity
def show(
    context: typer.Context,
    row_id: Annotated[int, typer.Argument(metavar="ID", help="Row to show; 'leaderboard' lists the ids.")],
    db: Annotated[str | None, typer.Option("--db", help="Leaderboard: a file, or a sqlite:///FILE URL.")] = None,
    json_output: options.Json = False,
) -> None:
    """Show everything about one row, its source included."""
    from evoengine.cli.verbs.leaderboard import show_row

    said = json_output or _said_before(context, None, "json_output")
    show_row(_said_before(context, db, "db"), row_id, json_output=said)


@leaderboard_app.command()
@takes_verbosity
def export(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, or folder; - for the terminal.")],
    format_: Annotated[str, typer.Option("--format", help="json, csv, t4, rbk or robust-kbench.")] = "json",
    db: Annotated[str | None, typer.Option("--db", help="Leaderboard: a file, or a sqlite:///FILE URL.")] = None,
    problem: Annotated[str | None, typer.Option(help="Only this problem: a name, a shape or a key.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device: cuda, emulator, or part of a name.")] = None,
    family: Annotated[str | None, typer.Option(help="Only this kernel family.")] = None,
    status: Annotated[str, typer.Option(help="Only this status; 'all' for every one.")] = "ok",
    problems: Annotated[
        Path | None, typer.Option(help="rbk_config.yaml, whose problems an rbk report tells of. [default: all]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite what is there.")] = False,
) -> None:
    """Write rows for other programs; rbk and robust-kbench write a folder."""
    from evoengine.cli.verbs.exchange import ExportRequest, export_rows

    request = ExportRequest(output, format_, problem, device, family, status, problems, force)
    export_rows(_said_before(context, db, "db"), request)


@leaderboard_app.command(name="import")
@takes_verbosity
def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A leaderboard as JSON or CSV, or T4 results.")],
    db: Annotated[str | None, typer.Option("--db", help="Leaderboard: a file, or a sqlite:///FILE URL.")] = None,
    family: Annotated[str | None, typer.Option(help="Of T4 results, which do not say it.")] = None,
    json_output: options.Json = False,
) -> None:
    """Take configs of others as seeds: not ranked, tried first by the next search on their problem."""
    from evoengine.cli.verbs.exchange import import_rows

    said = json_output or _said_before(context, None, "json_output")
    import_rows(_said_before(context, db, "db"), file, family, json_output=said)


def _said_before(context: typer.Context, value: Any, name: str) -> Any:
    """An option of this verb; what was said before the verb's own word counts too, and wins over a file of defaults."""
    parent = context.parent
    if parent is None or _is_said(context, name):
        return value
    return parent.params[name] if _is_said(parent, name) or not value else value


def _is_said(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
