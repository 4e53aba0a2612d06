"""Counts the differences between two problems; each caller weighs the counts itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evoengine.model.problem import Problem


@dataclass(frozen=True)
class ProblemDistance:
    """Differences between two problems; all are 0 for equal problems."""

    sizes: float
    """Sum of the doublings of query rows, keys, batch x heads, and query heads per K/V head."""
    head_dim: float
    """Doublings of the head dimension."""
    dtypes: int
    """1 if the element types differ, else 0."""
    masks: int
    """Number of masks (causal, window) that only one of the problems has."""
    extras: int
    """Number of features (softcap, sink, log-sum-exp, packed lengths) that only one of the problems has."""

    @classmethod
    def of(cls, a: Problem, b: Problem) -> ProblemDistance:
        """Compares two problems; the result is symmetric."""
        pairs = (
            (a.seq_q, b.seq_q),
            (a.seq_kv, b.seq_kv),
            (a.batch * a.heads, b.batch * b.heads),
            (a.heads // a.kv_heads, b.heads // b.kv_heads),
        )
        return cls(
            sizes=sum(_doublings(one, other) for one, other in pairs),
            head_dim=_doublings(a.head_dim, b.head_dim),
            dtypes=int(a.dtype is not b.dtype),
            masks=sum(one != other for one, other in zip(_masks(a), _masks(b), strict=True)),
            extras=sum(one != other for one, other in zip(_extras(a), _extras(b), strict=True)),
        )


def _masks(problem: Problem) -> tuple[bool, ...]:
    return problem.causal, problem.window_left is not None or problem.window_right is not None


def _extras(problem: Problem) -> tuple[bool, ...]:
    return problem.softcap > 0, problem.sink, problem.lse, problem.packed


def _doublings(one: int, other: int) -> float:
    return abs(math.log2(one / other))
