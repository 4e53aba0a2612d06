"""In which order kernels are tried for a problem that nobody searched for."""

from __future__ import annotations

from collections.abc import Iterable

from evoengine.api.rows import KernelRow, preference
from evoengine.model import Problem, ProblemDistance


def by_distance(problem: Problem, rows: Iterable[KernelRow]) -> list[KernelRow]:
    """The rows, the problem's own first, then those of the nearest problems.

    The order is the same everywhere: it depends on problems, times and ids alone.
    """
    return sorted(
        rows, key=lambda row: (distance(problem, row.problem), preference(row), row.problem.key, row.config.key)
    )


def distance(a: Problem, b: Problem) -> float:
    """How far two problems are apart; 0 for the same one.

    Sizes count by their binary logarithm, the work per head (lengths) and the work to share out (sequences and heads)
    alike. What is compiled in counts more than any doubling: head_dim and masks change a kernel's balance.
    """
    if a.key == b.key:
        return 0.0
    apart = ProblemDistance.of(a, b)
    compiled_in = 8.0 * apart.head_dim + 2.0 * apart.dtypes + 4.0 * apart.masks + 4.0 * apart.extras
    return 0.01 + apart.sizes + compiled_in
