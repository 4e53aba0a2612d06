"""Selection of leaderboard rows: by problem, device and status, of one ranking, or one row by its reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, Protocol

from evoengine.documents.escaping import shell_word
from evoengine.engine.options.problem import is_problem_key
from evoengine.engine.options.verbs import RowChoice, RowQuery
from evoengine.engine.rows.reference import RowReference, parse_row
from evoengine.engine.rows.shortlist import SHORTLIST, shortlisted
from evoengine.errors import NothingFoundError, UsageError
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.pareto import pareto_front
from evoengine.leaderboard.records import Record, Row, RowFilter, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS, Problem, Status, parse_problem
from evoengine.report.command import problem_options
from evoengine.search.champion.refusal import is_refused

ALL_ROWS: Final = RowQuery(top=None)
_KINDS: Final = ("cuda", "emulator", "replay")
_MOST_LISTED: Final = 8
"""Problems that a message lists."""
_MOST_LENGTHS: Final = 4
"""Packed sequences of a problem that a message spells out."""


@dataclass(frozen=True)
class FoundRow:
    """A row and the rankings among which it was chosen."""

    record: Record
    note: str = ""
    """Says that other rankings matched as well and how to select each; empty if none did."""


def find_rows(board: Leaderboard, query: RowQuery) -> list[Row]:
    """The rows that match a query, ranking by ranking, best first.

    Raises:
        UsageError: The status is unknown.
        ProblemError: The text of the problem is not a problem.
    """
    kind = query.device if query.device in _KINDS else None
    limit = None if query.pareto or query.shortlist else query.top
    problem = None if query.problem is None else problem_key(query.problem)
    wanted = RowFilter(problem=problem, device_kind=kind, statuses=_statuses(query.status), limit=limit)
    found = [row for row in board.rows(wanted) if matches(row, query.problem, query.device)]
    if not (query.pareto or query.shortlist):
        return found
    rankings = groupby(found, key=attrgetter("scope"))
    if query.shortlist:
        return [row for _, one in rankings for row in shortlisted(board, tuple(one), query.top or SHORTLIST)]
    return [row for _, ranking in rankings for row in pareto_front(tuple(ranking))[: query.top]]


def problem_key(selected: Problem | str) -> str:
    """Key of the one problem that a selection stands for.

    Args:
        selected: Problem, or a name, a shape or a key.

    Raises:
        ProblemError: The text is none of them.
    """
    if isinstance(selected, Problem):
        return selected.key
    return selected if is_problem_key(selected) else parse_problem(selected).key


def find_record(board: Leaderboard, choice: RowChoice, db: str) -> FoundRow:
    """The row that a reference names; ``best`` and ranks are those of the newest ranking that matches.

    Args:
        board: Leaderboard.
        choice: Reference, problem and device.
        db: Name of the leaderboard, for messages.

    Raises:
        UsageError: The text is no reference, or the row with this id is of another problem or device.
        StoreError: There is no row with this id.
        NothingFoundError: There is no correct row, or none with this rank.
    """
    reference = parse_row(choice.row)
    if reference.row_id is not None:
        return FoundRow(_checked(board.get(reference.row_id), choice))
    rows = find_rows(board, replace(ALL_ROWS, problem=choice.problem, device=choice.device))
    if not rows:
        raise NothingFoundError(f"{database_name(db)}: {nothing_for(board, choice.problem)}")
    newest = max(rows, key=lambda row: row.id).scope
    ranking = [row for row in rows if row.scope == newest]
    note = _note(board, ranking[0], rows)
    return FoundRow(of_rank(board, ranking, reference, db), note)


def best_record(board: Leaderboard, problem: Problem | str | None, device: str | None, db: str) -> Record:
    """The best row of the newest ranking; damaged rows are left out.

    Args:
        board: Leaderboard.
        problem: Only rows of this problem; None for all.
        device: Only rows of this device; None for all.
        db: Name of the leaderboard, for messages.

    Raises:
        NothingFoundError: There is no correct row.
    """
    return find_record(board, RowChoice(problem=problem, device=device), db).record


def shortlist_records(
    board: Leaderboard, problem: Problem | str | None, device: str | None, count: int, db: str
) -> Iterator[Record]:
    """Yields the shortlist of the newest ranking of predictions; damaged rows are left out.

    Args:
        board: Leaderboard.
        problem: Only rows of this problem; None for all.
        device: Only rows of this device; None for all.
        count: Maximum number of rows.
        db: Name of the leaderboard, for messages.

    Raises:
        NothingFoundError: There is no correct predicted row.
    """
    rows = [row for row in find_rows(board, replace(ALL_ROWS, problem=problem, device=device)) if row.predicted]
    if not rows:
        raise NothingFoundError(f"{database_name(db)}: no predicted kernel: run 'search --device emulator' first")
    newest = max(rows, key=lambda row: row.id).scope
    chosen = shortlisted(board, [row for row in rows if row.scope == newest], count)
    yield from _some(board.records(row.id for row in chosen), db)


def best_records(board: Leaderboard, device: str | None, db: str) -> Iterator[Record]:
    """Yields the best row of each problem on the device of the newest row; damaged rows are left out.

    Args:
        board: Leaderboard.
        device: Only rows of this device; None for all.
        db: Name of the leaderboard, for messages.

    Raises:
        NothingFoundError: There is no correct row.
    """
    rows = find_rows(board, replace(ALL_ROWS, device=device))
    if not rows:
        raise NothingFoundError(f"{database_name(db)}: no correct kernel yet: run a search first")
    newest = max(rows, key=lambda row: row.id)
    rankings: dict[str, list[Row]] = {}
    for row in rows:
        if replace(row.scope, problem=newest.problem) == newest.scope:
            rankings.setdefault(row.problem, []).append(row)
    found = (best_of(board, ranking) for ranking in rankings.values())
    yield from _some((record for record in found if record is not None), db)


def _some(records: Iterable[Record], db: str) -> Iterator[Record]:
    """Yields records, at least one."""
    found = False
    for record in records:
        found = True
        yield record
    if not found:
        raise NothingFoundError(_only_damaged(db))


def best_of(board: Leaderboard, ranking: Sequence[Row]) -> Record | None:
    """The best row of one ranking, the source included; None if all rows are damaged.

    Where times are measured it is the champion, or without one the fastest row: the fastest of many noisy times is not
    reliably the fastest kernel. Predictions have no noise, so there it is the fastest row. A row that an inspection
    refused comes last.
    """
    ordered = sorted(ranking, key=lambda row: not row.predicted and not row.champion)
    refused = None
    for record in board.records(row.id for row in ordered):
        if not is_refused(record):
            return record
        refused = refused or record
    return refused


def select_study(board: Leaderboard, problem: Problem | str | None, device: str | None, db: str) -> Study:
    """The study of the newest row of a problem, whatever its status; without rows the newest study.

    Args:
        board: Leaderboard.
        problem: Only studies of this problem; None for all.
        device: Only studies on this device; None for all.
        db: Name of the leaderboard, for messages.

    Raises:
        NothingFoundError: There is no such study.
    """
    studies = {study.id: study for study in board.studies() if matches(study.scope, problem, device)}
    if not studies:
        raise NothingFoundError(f"{database_name(db)}: {nothing_for(board, problem)}")
    rows = find_rows(board, replace(ALL_ROWS, problem=problem, device=device, status="all"))
    return studies[max(rows, key=lambda row: row.id).study_id if rows else max(studies)]


def one_problem(selected: Problem | str | None, device: str | None, db: str) -> Problem:
    """The problem of a verb that needs one, but no stored rows.

    Args:
        selected: Problem, or a name, a shape or a stored key; None for the newest stored problem, and the default one
            where none is stored.
        device: Only studies on this device; None for all.
        db: Leaderboard, which may be missing.

    Raises:
        UsageError: The selected key is a workload's, or there is no such leaderboard.
        NothingFoundError: No study has the selected key.
    """
    if isinstance(selected, Problem):
        return selected
    if selected is not None and not is_problem_key(selected):
        return parse_problem(selected)
    if selected is None and not is_there(db):
        return NAMED_PROBLEMS[DEFAULT_PROBLEM]
    with Leaderboard(database_url(db), create=False) as board:
        try:
            return problem_of(select_study(board, selected, device, db))
        except NothingFoundError:
            if selected is None:
                return NAMED_PROBLEMS[DEFAULT_PROBLEM]
            raise


def problem_of(study: Study) -> Problem:
    """The one problem of a study.

    Raises:
        UsageError: It is of a workload, which has several.
    """
    if study.key.workload is not None:
        raise UsageError(f"{study.scope.problem} is a workload, and one problem is needed: select it with --problem")
    return study.key.problem


def is_there(db: str) -> bool:
    """Whether a leaderboard's file exists; True for a URL, which is not checked."""
    return "://" in db or Path(db).exists()


def newest_problem_note(db: str, taken: str, device: str | None = None) -> str:
    """Says that the newest problem was taken and how to select the others; empty if there are none.

    Args:
        db: Leaderboard, which may be missing.
        taken: Key of the problem.
        device: Only studies on this device; None for all.
    """
    if not is_there(db):
        return ""
    with Leaderboard(database_url(db), create=False) as board:
        others = stored_problems(board, but=taken, device=device)
    return f"the newest problem is taken, {taken}; for another give {others}" if others else ""


def stored_problems(board: Leaderboard, *, but: str = "", device: str | None = None) -> str:
    """The stored problems as the options that select each, newest first; empty if there is none.

    Args:
        board: Leaderboard.
        but: Key of a problem to leave out.
        device: Only studies on this device; None for all.
    """
    studies = {study.scope.problem: study for study in board.studies() if matches(study.scope, None, device)}
    listed = [_options_of(study) for key, study in reversed(studies.items()) if key != but]
    if len(listed) > _MOST_LISTED:
        listed[_MOST_LISTED:] = [f"and {len(listed) - _MOST_LISTED} more, which 'leaderboard' lists"]
    return "; ".join(listed)


def stored_rankings(board: Leaderboard) -> str:
    """The stored problems with their devices and the options that select them, newest first; empty if none."""
    studies = {(study.scope.problem, study.scope.device): study for study in board.studies()}
    return "; ".join(
        f"{problem} on {device} ({_options_of(study)})"
        for (problem, device), study in list(reversed(studies.items()))[:_MOST_LISTED]
    )


def _options_of(study: Study) -> str:
    """The options that select a study's problem."""
    problem = study.key.problem
    if study.key.workload is not None or len(problem.lengths_q) > _MOST_LENGTHS:
        return f"--problem {shell_word(study.scope.problem)}"
    return " ".join(map(shell_word, problem_options(problem)))


def nothing_for(board: Leaderboard, problem: Problem | str | None) -> str:
    """Says that there is no kernel for a problem, and how to select those that are stored."""
    stored = stored_problems(board)
    if problem is None or not stored:
        return "no correct kernel yet: run a search first"
    key = problem_key(problem)
    what = key if problem == key or isinstance(problem, Problem) else f"{problem}, {key},"
    return f"no correct kernel for {what} yet: search it, or select a stored problem: {stored}"


def _note(board: Leaderboard, chosen: Row, rows: Iterable[Row]) -> str:
    """Lists the rankings that matched besides the chosen one."""
    others = {row.scope: row for row in rows if row.scope != chosen.scope}
    if not others:
        return ""
    kind = "predicted" if chosen.predicted else "measured"
    taken = f"the newest ranking is taken, {chosen.problem} {kind} on {chosen.device}"
    if any(row.problem != chosen.problem for row in others.values()):
        return f"{taken}; for another problem give {stored_problems(board, but=chosen.problem)}"
    devices = {_device_option(row, chosen): None for row in others.values()}
    return f"{taken}; for another give {'; '.join(devices)}"


def _device_option(row: Row, chosen: Row) -> str:
    """The option that selects a row's ranking instead of another of the same problem."""
    if row.device_kind != chosen.device_kind:
        return f"--device {row.device_kind}"
    if row.device != chosen.device:
        return f"--device {shell_word(row.device)}"
    return f"the id of a row of {row.arch}, {row.method}"


def _checked(record: Record, choice: RowChoice) -> Record:
    """Checks that a row named by its id is of the selected problem and device.

    Raises:
        UsageError: It is not.
    """
    row = record.row
    if choice.problem is not None and problem_key(choice.problem) != row.problem:
        raise UsageError(f"row {row.id} is of {row.problem}, not of {problem_key(choice.problem)}")
    if not matches(row, None, choice.device):
        raise UsageError(f"row {row.id} is of {row.device} ({row.device_kind}), not of {choice.device}")
    return record


def of_rank(board: Leaderboard, ranking: Sequence[Row], reference: RowReference, db: str) -> Record:
    """The row of a ranking that a reference without an id names.

    Args:
        board: Leaderboard.
        ranking: Correct rows of one ranking, at least one.
        reference: Rank, or best.
        db: Name of the leaderboard, for messages.

    Raises:
        NothingFoundError: No row has the rank, or all rows are damaged.
    """
    if reference.rank is None:
        found = best_of(board, ranking)
    else:
        named = [row for row in ranking if row.rank == reference.rank]
        if not named:
            last = max(row.rank or 0 for row in ranking)
            raise NothingFoundError(
                f"{database_name(db)}: no row has rank {reference.rank}: the ranking has the ranks 1 to {last}"
            )
        found = next(board.records(row.id for row in named), None)
    if found is None:
        raise NothingFoundError(_only_damaged(db))
    return found


def _only_damaged(db: str) -> str:
    return f"{database_name(db)}: no kernel is left without its damaged rows: restore a copy, or search again"


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


def matches(one: Ranked, problem: Problem | str | None, device: str | None) -> bool:
    """Whether a row or scope is of exactly this problem and of this device; None for any.

    Args:
        one: Row or scope.
        problem: Problem, or a name, a shape or a key.
        device: A kind, or part of a device's name.

    Raises:
        ProblemError: The text is no problem.
    """
    if problem is not None and one.problem != problem_key(problem):
        return False
    return device is None or one.device_kind == device or device.lower() in one.device.lower()
