"""A ranking as a table that fits the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len
from rich.table import Table

from evoengine.cli.output.config_text import SharedTunables
from evoengine.documents.escaping import printable
from evoengine.leaderboard.records import Row
from evoengine.model import Status

_GAP: Final = 2
"""Spaces between columns."""
_CONFIG_WIDTH: Final = 26
"""Minimum width of the config column."""


@dataclass(frozen=True)
class _Column:
    """One column of the table."""

    head: str
    cell: Callable[[Row], str]
    dispensable: int = 0
    """Order in which columns are dropped on a narrow terminal, 1 first; 0 for a column that stays."""
    justify: Literal["left", "right"] = "right"


def ranking_table(rows: Sequence[Row], width: int) -> Table:
    """Makes the table of one ranking.

    Columns that do not fit are dropped and named below it, and so are the tunables that all rows share.

    Args:
        rows: Rows of one ranking, at least one.
        width: Columns of the terminal.
    """
    first = rows[0]
    kind = f"PREDICTED on {first.device} ({first.device_kind})" if first.predicted else f"measured on {first.device}"
    title = printable(f"{first.problem} · {kind} · {first.arch} · {first.method}")
    shown, left_out = _fitting(_columns(rows), rows, width)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for column in shown:
        table.add_column(column.head, justify=column.justify, no_wrap=True)
    if any(row.status is not Status.OK for row in rows):
        table.add_column("status", overflow="fold")
    shared = SharedTunables(rows)
    table.add_column("tunables that differ", overflow="fold")
    for row in rows:
        cells = [column.cell(row) for column in shown]
        if any(one.status is not Status.OK for one in rows):
            cells.append(row.status.value if not row.reason else f"{row.status.value}: {row.reason}")
        table.add_row(*map(printable, (*cells, shared.differing(row))))
    notes = [*map(printable, shared.lines()), *_notes(rows, left_out)]
    table.caption, table.caption_justify = "\n".join(notes) or None, "left"
    return table


def _notes(rows: Sequence[Row], left_out: Sequence[str]) -> Iterator[str]:
    """Explains marks and missing columns."""
    if any(row.champion for row in rows):
        best = ": 'best' is the row of rank 1" if rows[0].predicted else ", which is 'best'"
        yield f"* champion: accepted after a comparison with the previous champion{best}"
    if any(row.pending for row in rows):
        yield "+ beat the champion; becomes champion after its compute-sanitizer check in the next search"
    if left_out:
        yield f"hidden columns: {', '.join(left_out)}; a wider terminal or --json shows them"


def _columns(rows: Sequence[Row]) -> list[_Column]:
    found = [
        _Column("rank", lambda row: "-" if row.rank is None else f"{row.rank}{_mark(row)}"),
        _Column("id", lambda row: str(row.id)),
        _Column("pred. us" if rows[0].predicted else "us", lambda row: _number(row.median_us, ".2f")),
        _Column("95 % CI", _interval, 5),
        _Column("speed-up", lambda row: "-" if row.speedup is None else f"{row.speedup:.2f}x", 7),
        _Column("regs", lambda row: _number(row.registers, "d"), 3),
        _Column("spill", lambda row: _number(row.spill_bytes, "d"), 1),
        _Column("smem", lambda row: "-" if row.smem_bytes is None else f"{row.smem_bytes / 1024:.0f}K", 2),
    ]
    if any(row.energy_uj is not None for row in rows):
        found.append(_Column("uJ", lambda row: _number(row.energy_uj, ".1f"), 6))
    found.append(_Column("max error", lambda row: _number(row.max_error, ".1e"), 4))
    return [*found, _Column("family", lambda row: row.family, 8, "left")]


def _fitting(columns: list[_Column], rows: Sequence[Row], width: int) -> tuple[list[_Column], list[str]]:
    """The columns that leave enough width for the config, and the heads of the others."""
    shown, left_out = list(columns), []
    for column in sorted((one for one in columns if one.dispensable), key=lambda one: one.dispensable):
        needed = sum(max(cell_len(one.head), *(cell_len(one.cell(row)) for row in rows)) + _GAP for one in shown)
        if needed + _CONFIG_WIDTH <= width:
            break
        shown.remove(column)
        left_out.append(column.head)
    return shown, left_out


def _interval(row: Row) -> str:
    if row.predicted or row.low_us is None or row.high_us is None:
        return "-"
    return f"{row.low_us:.2f}-{row.high_us:.2f}"


def _mark(row: Row) -> str:
    """Mark after the rank."""
    return "*" if row.champion else "+" if row.pending else " "


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
