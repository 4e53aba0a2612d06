"""Selection of leaderboard rows by problem, device and status, and of the best row of each problem."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Final, Protocol

from evoengine.engine.verb_options import RowQuery
from evoengine.errors import NothingFoundError, UsageError
from evoengine.leaderboard.pareto import pareto_front
from evoengine.leaderboard.records import Record, Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import NAMED_PROBLEMS, Status

ALL_ROWS: Final = RowQuery(top=None)
_KINDS: Final = ("cuda", "emulator", "replay")


def find_rows(board: Leaderboard, query: RowQuery) -> list[Row]:
    """The rows that match a query, ranking by ranking, best first.

    Raises:
        UsageError: The status is unknown.
    """
    kind = query.device if query.device in _KINDS else None
    limit = None if query.pareto else query.top
    rows = board.rows(RowFilter(device_kind=kind, statuses=_statuses(query.status), limit=limit))
    found = [row for row in rows if matches(row, query.problem, query.device)]
    if not query.pareto:
        return found
    rankings = groupby(found, key=ranking_of)
    return [row for _, ranking in rankings for row in pareto_front(tuple(ranking))[: query.top]]


def ranking_of(row: Row) -> tuple[object, ...]:
    """Key of the ranking that a row belongs to."""
    return row.problem, row.device, row.arch, row.predicted, row.method


def best_records(board: Leaderboard, device: str | None, db: str) -> list[Record]:
    """The best row of each problem on the device of the newest row; damaged rows are left out.

    Args:
        board: Leaderboard.
        device: Only rows of this device; None for all.
        db: Name of the leaderboard, for messages.

    Raises:
        NothingFoundError: There is no correct row.
    """
    rows = find_rows(board, replace(ALL_ROWS, device=device))
    if not rows:
        raise NothingFoundError(f"{db}: no correct kernel yet: run a search first")
    newest = max(rows, key=lambda row: row.id)
    rankings: dict[str, list[Row]] = {}
    for row in rows:
        if _device_ranking(row)[1:] == _device_ranking(newest)[1:]:
            rankings.setdefault(row.problem, []).append(row)
    found = [record for ranking in rankings.values() if (record := first_sound(board, ranking)) is not None]
    if not found:
        raise NothingFoundError(f"{db}: no kernel is left without its damaged rows: restore a copy, or search again")
    return found


def best_record(board: Leaderboard, problem: str | None, device: str | None, db: str) -> Record:
    """The champion of the ranking that holds the newest row, or its fastest row if it has no champion.

    Damaged rows are left out.

    Args:
        board: Leaderboard.
        problem: Only rows of this problem; None for all.
        device: Only rows of this device; None for all.
        db: Name of the leaderboard, for messages.

    Raises:
        NothingFoundError: There is no correct row.
    """
    rows = find_rows(board, replace(ALL_ROWS, problem=problem, device=device))
    if not rows:
        what = f" for problem {problem}" if problem else ""
        raise NothingFoundError(f"{db}: no correct kernel{what} yet: run a search first")
    newest = max(rows, key=lambda row: row.id)
    found = first_sound(board, [row for row in rows if _device_ranking(row) == _device_ranking(newest)])
    if found is None:
        raise NothingFoundError(f"{db}: no kernel is left without its damaged rows: restore a copy, or search again")
    return found


def first_sound(board: Leaderboard, ranking: list[Row]) -> Record | None:
    """The champion of a ranking, else its fastest row, the source included; None if all rows are damaged."""
    champions_first = sorted(ranking, key=lambda row: not row.champion)
    return next(board.records(row.id for row in champions_first), None)


def _device_ranking(row: Row) -> tuple[object, ...]:
    return row.problem, row.device_kind, row.device, row.arch, row.predicted, row.method


def _statuses(text: str) -> tuple[Status, ...]:
    if text == "all":
        return ()
    try:
        return (Status(text.lower()),)
    except ValueError:
        known = ", ".join(status.value for status in Status)
        raise UsageError(f"unknown status '{text}': choose all, or one of {known}") from None


class Ranked(Protocol):
    """A row, or the scope of a study."""

    @property
    def problem(self) -> str:
        """Key of the problem or workload."""

    @property
    def device_kind(self) -> str: ...

    @property
    def device(self) -> str: ...


def matches(one: Ranked, problem: str | None, device: str | None) -> bool:
    """Whether a row or scope is of this problem and device; None for any.

    Args:
        one: Row or scope.
        problem: A name, a shape of any dtype and mask, or a full key.
        device: A kind, or part of a device's name.
    """
    if problem is not None:
        shape = NAMED_PROBLEMS[problem].shape_key if problem in NAMED_PROBLEMS else problem
        if one.problem != shape and not one.problem.startswith(f"{shape}-"):
            return False
    return device is None or one.device_kind == device or device.lower() in one.device.lower()
