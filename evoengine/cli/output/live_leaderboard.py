"""``leaderboard --watch``: the rankings of a running search, refreshed every second."""

from __future__ import annotations

import time
from itertools import groupby
from operator import attrgetter
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from evoengine.cli.output.console import make_console
from evoengine.cli.output.ranking_table import ranking_table
from evoengine.documents.escaping import printable
from evoengine.engine.options.verbs import RowQuery
from evoengine.engine.rows.queries import find_rows
from evoengine.errors import UsageError
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.records import Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.system.streams import require_reader

_PAUSE_S: Final = 1.0


def watch_rows(db: str, query: RowQuery, *, json_output: bool) -> None:
    """Shows the rows until Ctrl-C: a live table on a terminal, elsewhere a line for each change.

    Raises:
        UsageError: JSON is requested.
        StoreError: There is no leaderboard.
    """
    if json_output:
        raise UsageError("--watch has no JSON output: give --json alone, or read the log of the search")
    console = make_console()
    with Leaderboard(database_url(db), create=False) as board:
        try:
            if console.is_terminal:
                _draw(board, query, console)
            else:
                _append(board, query, console)
        except KeyboardInterrupt:
            return


def _draw(board: Leaderboard, query: RowQuery, console: Console) -> None:
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            rows = find_rows(board, query)
            tables = [
                ranking_table(tuple(ranking), console.width) for _, ranking in groupby(rows, key=attrgetter("scope"))
            ]
            live.update(Group(*tables, Text(printable(f"{_counts(board)}; Ctrl-C stops"), style="dim")), refresh=True)
            time.sleep(_PAUSE_S)


def _append(board: Leaderboard, query: RowQuery, console: Console) -> None:
    last = ""
    while True:
        rankings = groupby(find_rows(board, query), key=attrgetter("scope"))
        line = "; ".join((_counts(board), *(_best(next(ranking)) for _, ranking in rankings)))
        if line != last:
            console.print(line, markup=False)
            console.file.flush()
            require_reader()
            last = line
        time.sleep(_PAUSE_S)


def _counts(board: Leaderboard) -> str:
    return ", ".join(f"{count} {status.value}" for status, count in board.counts().items()) or "empty"


def _best(row: Row) -> str:
    time_us = "no time" if row.median_us is None else f"{row.median_us:.2f} us"
    return f"{row.problem} on {row.device}: row {row.id}, {time_us}{' predicted' if row.predicted else ''}"
