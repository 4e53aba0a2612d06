"""In which order kernels are tried for a problem that nobody searched for."""

from __future__ import annotations

import math
from collections.abc import Iterable

from evoengine.api.rows import KernelRow, preference
from evoengine.kernel.template_meta import features_of
from evoengine.model import Problem


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
    sizes = sum(
        abs(math.log2(x / y))
        for x, y in (
            (a.seq_q, b.seq_q),
            (a.seq_kv, b.seq_kv),
            (a.batch * a.heads, b.batch * b.heads),
            (a.heads // a.kv_heads, b.heads // b.kv_heads),
        )
    )
    compiled_in = 8.0 * abs(math.log2(a.head_dim / b.head_dim)) + 2.0 * (a.dtype is not b.dtype)
    masks = 4.0 * (a.causal is not b.causal) + 4.0 * len(set(features_of(a)) ^ set(features_of(b)))
    return 0.01 + sizes + compiled_in + masks
