"""``lock``: writes the kernel of each problem on each GPU to a file for every host of a job."""

from __future__ import annotations

from evoengine.api.lockfile import LOCK_SUFFIX, StaleLockError, lock_text, read_lockfile
from evoengine.api.rows import KernelRow, best_rows, leaderboard_rows, slot
from evoengine.cli.output.console import print_json
from evoengine.cli.output.echo import echo
from evoengine.cli.output.verbosity import say
from evoengine.engine.options.verbs import LockOptions
from evoengine.engine.rows.queries import problem_key, stored_problems
from evoengine.errors import NothingFoundError, UsageError
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.system.files import write_file


def run_lock(options: LockOptions, *, json_output: bool) -> bool:
    """Writes the lockfile, replacing an older one.

    Returns:
        With ``check``, whether the file is up to date; else True.

    Raises:
        UsageError: The output has another suffix, cannot be written, or is a file of another program; with ``check``,
            it was edited or has another format.
        NothingFoundError: The leaderboard holds no measured kernel that matches.
    """
    if options.output.suffix != LOCK_SUFFIX:
        raise UsageError(f"{options.output}: the name of a lockfile ends in {LOCK_SUFFIX}: give another -o")
    with Leaderboard(database_url(options.db), create=False) as board:
        rows = best_rows(row for row in leaderboard_rows(board) if _matches(row, options))
        stored = stored_problems(board)
    if not rows:
        asked = [] if options.problem is None else [f"problem {problem_key(options.problem)}"]
        asked += [f"GPU {options.gpu}"] * bool(options.gpu)
        wanted = f" for {' on '.join(asked)}" if asked else ""
        raise NothingFoundError(
            f"{database_name(options.db)}: no measured kernel to lock{wanted}: "
            "predictions are not locked; run a search on a GPU"
            + (f", or select a stored problem: {stored}" if stored and options.problem is not None else "")
        )
    same = _holds(options, rows)
    if not options.check:
        write_file(options.output, lock_text(rows))
    if json_output:
        print_json({"file": str(options.output), "same": same, "kernels": [_document(row) for row in rows]})
    else:
        _report(options, rows, same)
    return same or not options.check


def _holds(options: LockOptions, rows: list[KernelRow]) -> bool:
    """Whether the output is a lockfile of these rows."""
    try:
        return options.output.is_file() and sorted(read_lockfile(options.output), key=slot) == rows
    except StaleLockError:
        if options.check:
            raise
        return False


def _matches(row: KernelRow, options: LockOptions) -> bool:
    if options.gpu is not None and options.gpu.lower() not in row.gpu.lower():
        return False
    return options.problem is None or problem_key(options.problem) == row.problem.key


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


def _report(options: LockOptions, rows: list[KernelRow], same: bool) -> None:
    for row in rows:
        echo(f"{row.problem.key} on {row.gpu}: row {row.row_id}, {row.median_us:.2f} us, code {row.code_hash}")
    if options.check:
        echo(f"{options.output} {'is up to date' if same else 'is not up to date: run lock without --check'}")
    else:
        say(f"wrote {options.output}{', unchanged' if same else ''}")
