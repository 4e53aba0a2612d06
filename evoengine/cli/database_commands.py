"""Command-line options of ``db`` and its sub-verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from evoengine.cli.options.help_panels import PanelGroup
from evoengine.cli.options.parameters import command
from evoengine.engine.options.fields import Json, Option

database_app = typer.Typer(
    cls=PanelGroup,
    help="Work on leaderboards as databases.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@command(database_app)
def copy(
    source: Annotated[
        str, Option("Leaderboard to copy: a file, or a URL as for --db.", metavar="SRC", positional=True)
    ],
    destination: Annotated[str, Option("Empty or new leaderboard.", metavar="DST", positional=True)],
    json_output: Json = False,
) -> None:
    """Copy a leaderboard between SQLite files and PostgreSQL; ids stay, leases of running searches are left out."""
    from evoengine.cli.verbs.database import copy_database

    copy_database(source, destination, json_output=json_output)
