"""Choice of one kernel per problem of a model, such that near problems share machine code where that costs little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evoengine.api.rows import KernelRow, best_rows, leaderboard_rows, row_of
from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem


@dataclass(frozen=True)
class ChosenKernel:
    """Row chosen for a problem."""

    row: KernelRow
    """A row that was measured on the problem itself."""
    shared_with: str = ""
    """Key of the problem whose kernel it is; empty for the problem's own fastest one."""
    cost: float = 0.0
    """Its time over that of the problem's fastest kernel, minus 1."""


def choose_kernels(
    board: Leaderboard, gpu: str, problems: Sequence[Problem], most_cost: float
) -> dict[str, ChosenKernel]:
    """Chooses a measured kernel for each problem that has one.

    A problem takes the machine code of an earlier one if its own search measured that, with at most `most_cost` more
    time than its own best.

    Args:
        board: Open leaderboard.
        gpu: Name of the GPU.
        problems: Problems in order of preference.
        most_cost: Maximum relative cost of a shared kernel.

    Returns:
        The kernels by the problem's key.
    """
    best = {row.problem.key: row for row in best_rows(leaderboard_rows(board, gpu))}
    owners: dict[str, str] = {}
    chosen: dict[str, ChosenKernel] = {}
    for problem in problems:
        own = best.get(problem.key)
        if own is None:
            continue
        found = _shared(board, own, owners, most_cost)
        chosen[problem.key] = found
        owners.setdefault(found.row.code_hash, problem.key)
    return chosen


def _shared(board: Leaderboard, own: KernelRow, owners: dict[str, str], most_cost: float) -> ChosenKernel:
    """Returns the fastest row of a problem's ranking with the code of an earlier problem, else the problem's best."""
    ranking = RowFilter(own.problem.key, "cuda", own.gpu, own.arch, method=own.method, predicted=False)
    for row in board.rows(ranking):
        if row.median_us is None or row.median_us > own.median_us * (1 + most_cost):
            break
        if row.code_hash in owners:
            for record in board.records((row.id,)):
                cost = row.median_us / own.median_us - 1
                return ChosenKernel(row_of(record), owners[row.code_hash], cost)
    return ChosenKernel(own)
