"""Pool of parity cases of one search: every shape with every profile; each candidate draws a subset.

The pool's seed is fresh for every search and is stored in each verdict. A candidate's cases follow from that seed and
the hash of its source: a verdict can be reproduced, and no candidate can be tuned to its inputs. Reference results are
computed once, when the pool is built.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from evoengine.kernel.records import LaunchSpec
from evoengine.model import Problem
from evoengine.parity.inputs.case import ParityCase, make_case
from evoengine.parity.inputs.cases import (
    crowd_cases,
    deal_profiles,
    expanded_plans,
    extreme_case,
    faint_case,
    grouped_plan,
    large_plans,
    limited,
    pieces_plan,
    plans_for,
    problem_case,
    residue_plans,
    steep_cases,
    tall_plan,
)
from evoengine.parity.inputs.profiles import PROFILES
from evoengine.parity.reference.row_sample import every_row

_SEED_BITS: Final = 48
"""Seeds fit a signed 64-bit integer and a JSON number."""

_RECHECKS: Final = 3
_RECHECK_ELEMENTS: Final = 2**22
"""Problems with more elements of Q, K and V have a single recheck, to limit memory."""

_EVERYWHERE: Final = "peaky"
"""Profile of one head of every recheck; the shapes of several key tiles use it too."""

_MAX_THREADS: Final = 8


@dataclass(frozen=True)
class Draw:
    """Cases of one candidate."""

    gate: tuple[ParityCase, ...]
    """Cases before timing: one of each shape, all with different profiles, then the problem itself."""
    recheck: ParityCase
    """Case after timing: the problem on inputs that no candidate is timed on."""


@dataclass(frozen=True, eq=False)
class CasePool:
    """All cases of one search; created by :func:`build_pool`."""

    seed: int
    shapes: tuple[tuple[ParityCase, ...], ...]
    """Cases by shape, cheap shapes first, and by profile in the order of :data:`PROFILES`."""
    problem: ParityCase
    """Problem with normal inputs, on which every candidate is timed."""
    rechecks: tuple[ParityCase, ...]
    """Problem with mixed profiles, which alternate over the K/V heads."""
    steep: tuple[ParityCase, ...] = ()
    """Cases with a large softmax scale, for finalists."""
    slices: tuple[ParityCase, ...] = ()
    """Slice of the problem and its rechecks, used instead of the above for slow kernels; may be empty."""

    def draw(self, source_hash: str, *, slow: bool = False) -> Draw:
        """Draws a candidate's cases: all shapes, with profiles that follow from its source and the pool's seed.

        Args:
            source_hash: Source hash of the candidate.
            slow: Whether to replace the problem by the pool's slice of it, if it has one.
        """
        rng = self._rng(source_hash)
        small = [cases[number] for cases, number in zip(self.shapes, self._deal(rng), strict=True)]
        timed, *rechecks = self.slices if slow and self.slices else (self.problem, *self.rechecks)
        return Draw((*small, timed), rechecks[int(rng.integers(len(rechecks)))])

    def others(self, source_hash: str) -> tuple[ParityCase, ...]:
        """Returns the small cases that a candidate's draw lacks, with all other variants and scales: for finalists."""
        dealt = self._deal(self._rng(source_hash))
        pairs = zip(self.shapes, dealt, strict=True)
        shapes = (case for cases, number in pairs for case in (*cases[:number], *cases[number + 1 :]))
        return (*self.steep, *shapes)

    @cached_property
    def all_rows(self) -> tuple[ParityCase, ...]:
        """The problem's case with the rows of :func:`every_row` compared, for finalists.

        It is empty where the problem's own case has these rows. The first access takes up to a second.
        """
        inputs = self.problem.inputs
        if len(every_row(inputs.problem, self.seed).row) == len(self.problem.sample.row):
            return ()
        return (make_case("problem-all-rows", inputs, self.seed, all_rows=True),)

    @cached_property
    def large(self) -> tuple[ParityCase, ...]:
        """Cases of more rows, sequences and lengths, of small weights and of large scores, for finalists.

        The first access takes a second.
        """
        problem = self.problem.inputs.problem
        shapes = (*large_plans(problem), *residue_plans(problem), pieces_plan(problem))
        plans = (plan.case(problem, 0, self.seed) for plan in shapes)
        return (
            *plans,
            faint_case(problem, self.seed),
            extreme_case(problem, self.seed),
            *crowd_cases(problem, self.seed),
        )

    @cached_property
    def expanded(self) -> tuple[ParityCase, ...]:
        """Cases in which Q, K and V have strides of 0; see :meth:`expanded_for`."""
        problem = self.problem.inputs.problem
        return tuple(plan.case(problem, 0, self.seed) for plan in expanded_plans(problem))

    def expanded_for(self, launch: LaunchSpec) -> tuple[ParityCase, ...]:
        """Returns :attr:`expanded` for finalists; nothing for kernels that copy Q, K or V by tensor maps.

        With a map, the copy unit computes the addresses, and the kernel reads no stride. CUDA documents the strides of
        maps as multiples of 16 bytes below 2^40 and does not mention 0, so a driver may refuse it; one for an H200 does
        not, and ``hopper`` computed these cases correctly there.
        """
        return () if any(item.tensor != "o" for item in launch.maps) else self.expanded

    @cached_property
    def grouped(self) -> ParityCase:
        """Case with several sequences, heads that share K and V, and a negative softmax scale.

        A finalist computes it as on a GPU of few SMs, where CTAs have several pieces of work: the sign may be missing
        in the second one, and offsets of the second head of a group may need more than 32 bits.
        """
        problem = self.problem.inputs.problem
        return grouped_plan(problem).case(problem, 0, self.seed)

    @cached_property
    def tall(self) -> ParityCase:
        """Case with more rows than the largest query tile, and so little work that any finalist is emulated on it.

        Offsets of the second tile may need more than 32 bits where those within a tile have them.
        """
        return tall_plan().case(self.problem.inputs.problem, 0, self.seed)

    def complete(self) -> None:
        """Makes all cases for finalists at once, so that no process that receives the pool needs torch."""
        for cases in ("all_rows", "large", "expanded", "grouped", "tall"):
            getattr(self, cases)

    def _rng(self, source_hash: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.seed}/{source_hash}".encode()).digest()
        return np.random.default_rng(list(digest[:16]))

    def _deal(self, rng: np.random.Generator) -> list[int]:
        """Returns the profile of each shape, by index; the pool's shapes are those of its problem, or none."""
        return [] if not self.shapes else deal_profiles(plans_for(self.problem.inputs.problem), rng)

    @property
    def everything(self) -> tuple[ParityCase, ...]:
        """All cases, small ones first: used to test templates, too expensive for candidates."""
        return (*(case for cases in self.shapes for case in cases), *self.steep, self.problem, *self.rechecks)


def fresh_seed() -> int:
    """Creates a seed from the operating system's entropy."""
    return secrets.randbits(_SEED_BITS)


def build_pool(problem: Problem, seed: int, max_flops: int | None = None, slow_part: Problem | None = None) -> CasePool:
    """Draws all inputs and computes their reference results, in up to eight threads.

    Meanwhile the process's other matrix products take one thread each: those of several threads wait for one another
    in OpenBLAS, which has one team of threads.

    Args:
        problem: Problem of the search.
        seed: Seed of all inputs.
        max_flops: Largest work of the problem's own case; None for no limit.
        slow_part: Slice of the problem for slow kernels; None if they run the whole problem too.
    """
    timed = problem if max_flops is None else limited(problem, max_flops)
    workers = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as threads:  # NumPy releases the GIL
        on_problem = threads.submit(problem_case, problem, seed, max_flops)
        count = recheck_count(input_elements(timed))
        again = [threads.submit(_recheck, problem, seed, turn, max_flops, None) for turn in range(count)]
        plans, numbers = plans_for(problem), range(len(PROFILES))
        planned = [[threads.submit(plan.case, problem, number, seed) for number in numbers] for plan in plans]
        steep = threads.submit(steep_cases, problem, seed)
        sliced: list[Future[ParityCase]] = []
        if slow_part is not None and slow_part.flops < timed.flops:
            turns = (threads.submit(_recheck, problem, seed, turn, None, slow_part) for turn in range(_RECHECKS))
            sliced = [threads.submit(problem_case, problem, seed, part=slow_part), *turns]
        shapes = tuple(tuple(case.result() for case in cases) for cases in planned)
        rechecks, slices = (tuple(case.result() for case in cases) for cases in (again, sliced))
    return CasePool(seed, shapes, on_problem.result(), rechecks, steep.result(), slices)


def input_elements(problem: Problem) -> int:
    """Returns the elements of Q, K and V together."""
    rows = problem.heads * problem.rows_q + 2 * problem.kv_heads * problem.rows_kv
    return problem.memory_batch * rows * problem.head_dim


def recheck_count(elements: int) -> int:
    """Returns the number of rechecks of a problem, given its elements of Q, K and V."""
    return _RECHECKS if elements <= _RECHECK_ELEMENTS else 1


def _recheck(problem: Problem, seed: int, turn: int, max_flops: int | None, part: Problem | None) -> ParityCase:
    """Creates the problem's case with alternating profiles.

    The first K/V head is always peaky, because only the problem may have many key tiles; the others start with a
    different profile in each turn. A single head of one sequence is peaky in the first turn only.
    """
    names = tuple(name for name in PROFILES if name != _EVERYWHERE)
    first = (seed + turn * len(names) // _RECHECKS) % len(names)
    alone = len((part or problem).sequences) * (part or problem).kv_heads == 1
    everywhere = () if alone and turn else (_EVERYWHERE,)
    return problem_case(problem, seed, max_flops, (*everywhere, *names[first:], *names[:first]), part)


def draw_cases(problem: Problem, seed: int, max_flops: int | None = None) -> tuple[ParityCase, ...]:
    """Draws the cases of one candidate without a pool, for tests of kernels.

    Args:
        problem: Problem of the kernel.
        seed: Seed of inputs and profiles.
        max_flops: Largest work of the problem's own case; None for no limit.
    """
    plans = plans_for(problem)
    dealt = deal_profiles(plans, np.random.default_rng(seed))
    small = [plan.case(problem, number, seed) for plan, number in zip(plans, dealt, strict=True)]
    return (*small, problem_case(problem, seed, max_flops))
