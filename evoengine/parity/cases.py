"""Which inputs a candidate must get right: few, telling, cheap first, the problem itself last.

Every case shares the head_dim, dtype and mask that are compiled into a candidate. The small ones are small because an
emulated launch costs by the instructions of one CTA, not by the CTAs: each case therefore tells several things at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from evoengine.kernel.call import Layout
from evoengine.model import Problem
from evoengine.parity.gate import ParityCase, make_case
from evoengine.parity.inputs import make_inputs


@dataclass(frozen=True)
class CasePlan:
    """Shape and profile of one small case."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    profile: str
    layout: Layout = "bhsd"

    def problem(self, like: Problem) -> Problem:
        """The case's problem, with everything that is compiled in taken from ``like``."""
        return replace(
            like,
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_q=self.seq_q,
            seq_kv=self.seq_kv,
        )

    def case(self, like: Problem, seed: int) -> ParityCase:
        """The case with its truth and tolerance."""
        return make_case(self.name, make_inputs(self.problem(like), self.profile, seed, self.layout), seed)


_FULL: Final = (
    # One row, one key: every tail predicate at once.
    CasePlan("single", 1, 1, 1, 1, 1, "normal"),
    # Ragged both ways, several batches, grouped heads, rows outside heads: addressing.
    CasePlan("ragged", 2, 4, 2, 37, 83, "offset", "bshd"),
    # More queries than keys: the two lengths swapped somewhere would show.
    CasePlan("few-keys", 1, 2, 2, 130, 33, "normal"),
    # Four key tiles of 128, the last one ragged; peaky: the running maximum moves, so every rescale counts.
    CasePlan("multi-tile", 1, 2, 1, 75, 419, "peaky"),
)

_CAUSAL: Final = (
    CasePlan("single", 1, 1, 1, 1, 1, "normal"),
    CasePlan("ragged", 2, 4, 2, 37, 83, "offset", "bshd"),
    # Rows 0 to 96 see no key at all and must be zero.
    CasePlan("no-key-rows", 1, 2, 2, 130, 33, "normal"),
    # The first query tile skips at least two key tiles of 128 wholly; the diagonal lies across tiles.
    CasePlan("multi-tile", 1, 2, 1, 402, 419, "peaky"),
)


def small_cases(problem: Problem, seed: int) -> tuple[ParityCase, ...]:
    """The small cases for everything that is compiled into a candidate of this problem."""
    plans = _CAUSAL if problem.causal else _FULL
    return tuple(plan.case(problem, seed) for plan in plans)


def limited(problem: Problem, max_flops: int) -> Problem:
    """The problem, or a slice of it that needs at most about ``max_flops``.

    First batches and heads are taken away (they are independent of each other), then query rows; with a bottom-right
    causal mask the rows that remain are the last ones, which see the most keys.
    """
    full = problem.batch * problem.heads
    per_head = 4 * problem.seq_q * problem.seq_kv * problem.head_dim
    if full * per_head <= max_flops:
        return problem
    group = problem.heads // problem.kv_heads
    kv_heads = max(1, min(problem.kv_heads, max_flops // (per_head * group)))
    heads = kv_heads * group
    batch = max(1, min(problem.batch, max_flops // (per_head * heads)))
    if per_head * heads > max_flops:
        kv_heads, heads = 1, min(group, max(1, max_flops // per_head))
    seq_q = max(1, min(problem.seq_q, max_flops // (4 * heads * problem.seq_kv * problem.head_dim)))
    return replace(problem, batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq_q)


def problem_case(problem: Problem, seed: int, max_flops: int | None = None) -> ParityCase:
    """The problem itself, or the slice of it that ``max_flops`` allows (then named ``problem-slice``)."""
    shape = problem if max_flops is None else limited(problem, max_flops)
    name = "problem" if shape == problem else "problem-slice"
    return make_case(name, make_inputs(shape, "normal", seed), seed)


def build_cases(problem: Problem, seeds: tuple[int, ...], max_flops: int | None = None) -> tuple[ParityCase, ...]:
    """All cases of a problem: the small ones for each seed, then the problem itself with the first seed.

    Args:
        problem: what candidates are searched for.
        seeds: at least one.
        max_flops: what the problem case may cost; None for no limit.
    """
    small = [case for seed in seeds for case in small_cases(problem, seed)]
    return (*small, problem_case(problem, seeds[0], max_flops))
