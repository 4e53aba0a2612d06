"""``leaderboard`` and ``leaderboard show``: what was found, ranked."""

from __future__ import annotations

from typing import Annotated

import typer

from evoengine.cli import options

leaderboard_app = typer.Typer(
    help="Show the leaderboard, or everything about one row.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@leaderboard_app.callback(invoke_without_command=True)
def leaderboard(
    context: typer.Context,
    db: options.Database = options.DEFAULT_DB,
    problem: Annotated[str | None, typer.Option(help="Only this problem: a name, a shape or a key.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device: cuda, emulator, or part of a name.")] = None,
    status: Annotated[str, typer.Option(help="Only this status; 'all' for every one.")] = "ok",
    top: Annotated[int, typer.Option(min=1, help="Rows per ranking.")] = 10,
    json_output: options.Json = False,
) -> None:
    """Show the leaderboard: fastest correct kernels first, one ranking per problem and device."""
    if context.invoked_subcommand is not None:
        return
    from evoengine.cli.leaderboard_verb import RowQuery, list_rows

    list_rows(db, RowQuery(problem, device, status, top), json_output=json_output)


@leaderboard_app.command()
def show(
    context: typer.Context,
    row_id: Annotated[int, typer.Argument(metavar="ID", help="Row to show; 'leaderboard' lists the ids.")],
    db: Annotated[str | None, typer.Option("--db", help="Leaderboard: a file, or a sqlite:///FILE URL.")] = None,
    json_output: options.Json = False,
) -> None:
    """Show everything about one row, its source included."""
    from evoengine.cli.leaderboard_verb import show_row

    before = context.parent.params if context.parent else {}  # what was said before the word 'show' counts too
    show_row(db or before["db"], row_id, json_output=json_output or before["json_output"])
