"""``lock``: which kernel each problem uses on each GPU, as a file for every host of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import typer

from evoengine.api.lockfile import LOCK_SUFFIX, lock_text, read_lockfile
from evoengine.api.rows import KernelRow, capability, leaderboard_rows, preference
from evoengine.cli.options.shared_options import DEFAULT_DB
from evoengine.cli.options.verbosity import say
from evoengine.cli.output.console import print_json
from evoengine.cli.output.files import write_whole
from evoengine.errors import NothingFoundError, UsageError
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import NAMED_PROBLEMS


@dataclass(frozen=True)
class LockRequest:
    """The options of ``lock``."""

    output: Path = Path("evoengine.lock")
    problem: str | None = None
    gpu: str | None = None
    db: str = DEFAULT_DB
    check: bool = False


def run_lock(request: LockRequest, *, json_output: bool) -> bool:
    """Writes the lockfile; a file that is there is replaced, for that is what it is for.

    Returns:
        With ``check``, whether the file says what would be written; else True.

    Raises:
        UsageError: the output has another suffix, or cannot be written; with ``check``, is malformed.
        NothingFoundError: the leaderboard holds no measured kernel that was asked for.
    """
    if request.output.suffix != LOCK_SUFFIX:
        raise UsageError(f"{request.output}: a lockfile's name ends in {LOCK_SUFFIX}, by which attention knows it")
    with Leaderboard(database_url(request.db), create=False) as board:
        rows = best_rows(row for row in leaderboard_rows(board) if _asked_for(row, request))
    if not rows:
        asked = [f"problem {request.problem}"] * bool(request.problem) + [f"GPU {request.gpu}"] * bool(request.gpu)
        wanted = f" for {' on '.join(asked)}" if asked else ""
        raise NothingFoundError(f"{request.db} holds no measured kernel to lock{wanted}: predictions are not locked")
    same = request.output.is_file() and sorted(read_lockfile(request.output), key=_place) == rows
    if not request.check:
        write_whole(request.output, lock_text(rows))
    if json_output:
        print_json({"file": str(request.output), "same": same, "kernels": [_document(row) for row in rows]})
    else:
        _tell(request, rows, same)
    return same or not request.check


def best_rows(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """Of each problem on each GPU the row that ``attention`` would choose."""
    best: dict[tuple[str, str, str], KernelRow] = {}
    for row in rows:
        held = best.setdefault(_place(row), row)
        if preference(row) < preference(held):
            best[_place(row)] = row
    return [best[place] for place in sorted(best)]


def _place(row: KernelRow) -> tuple[str, str, str]:
    return row.gpu, capability(row.arch), row.problem.key


def _asked_for(row: KernelRow, request: LockRequest) -> bool:
    if request.gpu is not None and request.gpu.lower() not in row.gpu.lower():
        return False
    if request.problem is None:
        return True
    named = NAMED_PROBLEMS.get(request.problem)
    shapes = {row.problem.key, row.problem.shape_key}
    return request.problem in shapes or (named is not None and named.shape_key == row.problem.shape_key)


def _document(row: KernelRow) -> dict[str, object]:
    return {
        "gpu": row.gpu,
        "problem": row.problem.key,
        "row": row.row_id,
        "family": row.config.family,
        "median_us": row.median_us,
        "speedup": row.speedup,
        "template_hash": row.template_hash,
        "source_hash": row.source_hash,
        "code_hash": row.code_hash,
    }


def _tell(request: LockRequest, rows: list[KernelRow], same: bool) -> None:
    for row in rows:
        typer.echo(f"{row.problem.key} on {row.gpu}: row {row.row_id}, {row.median_us:.2f} us, code {row.code_hash}")
    if request.check:
        typer.echo(f"{request.output} {'is up to date' if same else 'is not up to date: run lock without --check'}")
    else:
        say(f"wrote {request.output}{', unchanged' if same else ''}")
