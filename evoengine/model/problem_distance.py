"""In what two problems differ, counted: the one place where problems are compared. Who asks weighs the counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evoengine.model.problem import Problem


@dataclass(frozen=True)
class ProblemDistance:
    """Differences between two problems; all are zero for a problem and itself."""

    sizes: float
    """Doublings of query rows, of keys, of batch x heads and of the heads that share a K/V head, together."""
    head_dim: float
    """Doublings."""
    dtypes: int
    """1 where the element types differ."""
    masks: int
    """Of causal mask and window, how many only one of them has."""
    extras: int
    """Of softcap, sink, log-sum-exp and packed lengths, how many only one of them has."""

    @classmethod
    def of(cls, a: Problem, b: Problem) -> ProblemDistance:
        """Compares two problems; their order does not matter."""
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
