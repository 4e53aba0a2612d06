"""``db copy``: copies a leaderboard between SQLite and PostgreSQL."""

from __future__ import annotations

from evoengine.cli.output.console import make_console, print_json
from evoengine.leaderboard.copying import copy_leaderboard
from evoengine.leaderboard.database.connection import database_name


def copy_database(source: str, destination: str, *, json_output: bool) -> None:
    """Copies a leaderboard and prints the number of rows by table.

    Raises:
        StoreError: The source has no leaderboard, or the destination is not empty or cannot be written.
    """
    copied = copy_leaderboard(source, destination)
    names = database_name(source), database_name(destination)
    if json_output:
        print_json(
            {"source": names[0], "destination": names[1], "rows": dict(copied.rows), "left_out": copied.left_out}
        )
        return
    counts = ", ".join(f"{count} {name.removeprefix('evo_')}" for name, count in copied.rows.items() if count)
    damaged = f"; {copied.left_out} damaged rows left out" if copied.left_out else ""
    console = make_console()
    console.print(f"copied    {names[0]} to {names[1]}", markup=False, soft_wrap=True)
    console.print(f"rows      {counts or 'none'}{damaged}", markup=False, soft_wrap=True)
