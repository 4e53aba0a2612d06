"""The pool of inputs of one search: every shape with every profile, of which each candidate draws its own.

The pool's seed is fresh for every search and stands in each verdict. What a candidate faces follows from that seed and
from the hash of its source: a verdict can be replayed, and no candidate can be tuned to its inputs. The truths are
computed once, when the pool is built.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.model import Problem
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import plans_for, problem_case
from evoengine.parity.inputs.profiles import PROFILES

_SEED_BITS: Final = 48
"""A seed fits a signed 64-bit integer and a JSON number."""

_RECHECKS: Final = 3
_RECHECK_ELEMENTS: Final = 2**22
"""Of problems with more elements of Q, K and V there is one recheck, for the sake of memory."""

_MAX_THREADS: Final = 8


@dataclass(frozen=True)
class Draw:
    """What one candidate faces."""

    gate: tuple[ParityCase, ...]
    """Before it is timed: one of each shape, no two with the same profile, then the problem itself."""
    recheck: ParityCase
    """After it was timed: the problem on inputs that no candidate is timed on."""


@dataclass(frozen=True, eq=False)
class CasePool:
    """All cases of one search. Build it with :func:`build_pool`."""

    seed: int
    shapes: tuple[tuple[ParityCase, ...], ...]
    """For each shape, cheap ones first, its cases by profile, in the order of :data:`PROFILES`."""
    problem: ParityCase
    """The problem with normal inputs: on these every candidate is timed."""
    rechecks: tuple[ParityCase, ...]
    """The problem with all profiles, one K/V head after the other."""
    slices: tuple[ParityCase, ...] = ()
    """For kernels that are slow to run, instead of the problem and its rechecks: the same of a slice, or nothing."""

    def draw(self, source_hash: str, *, slow: bool = False) -> Draw:
        """What a candidate faces: all shapes, each with a profile that follows from its source and the pool's seed.

        Args:
            source_hash: of the candidate.
            slow: where the pool has a slice of the problem, that takes the problem's place.
        """
        digest = hashlib.sha256(f"{self.seed}/{source_hash}".encode()).digest()
        rng = np.random.default_rng(list(digest[:16]))
        order = rng.permutation(len(PROFILES))
        small = [cases[order[index % len(order)]] for index, cases in enumerate(self.shapes)]
        timed, *rechecks = self.slices if slow and self.slices else (self.problem, *self.rechecks)
        return Draw((*small, timed), rechecks[int(rng.integers(len(rechecks)))])

    @property
    def everything(self) -> tuple[ParityCase, ...]:
        """All cases, small ones first: a gate for templates, too dear for candidates."""
        return (*(case for cases in self.shapes for case in cases), self.problem, *self.rechecks)


def fresh_seed() -> int:
    """A seed from the operating system's entropy."""
    return secrets.randbits(_SEED_BITS)


def build_pool(problem: Problem, seed: int, max_flops: int | None = None, slow_part: Problem | None = None) -> CasePool:
    """Draws all inputs and computes their truths.

    Args:
        problem: what candidates are searched for.
        seed: of everything.
        max_flops: what the problem's own case may cost; None for no limit.
        slow_part: a slice of the problem for kernels that are slow to run; None if they run it whole as well.
    """
    names = tuple(PROFILES)
    with ThreadPoolExecutor(min(_MAX_THREADS, len(os.sched_getaffinity(0)))) as threads:  # NumPy lets them run at once
        on_problem = threads.submit(problem_case, problem, seed, max_flops)
        plans = plans_for(problem)
        planned = [[threads.submit(plan.case, problem, profile, seed) for profile in names] for plan in plans]
        timed = on_problem.result()
        tensors = (timed.inputs.q, timed.inputs.k, timed.inputs.v)
        count = _RECHECKS if sum(tensor.size for tensor in tensors) <= _RECHECK_ELEMENTS else 1
        again = [threads.submit(_recheck, problem, seed, turn, max_flops, None) for turn in range(count)]
        sliced: list[Future[ParityCase]] = []
        if slow_part is not None and slow_part.flops < timed.inputs.problem.flops:
            turns = (threads.submit(_recheck, problem, seed, turn, None, slow_part) for turn in range(_RECHECKS))
            sliced = [threads.submit(problem_case, problem, seed, part=slow_part), *turns]
        shapes = tuple(tuple(case.result() for case in cases) for cases in planned)
        rechecks, slices = (tuple(case.result() for case in cases) for cases in (again, sliced))
    return CasePool(seed, shapes, timed, rechecks, slices)


def _recheck(problem: Problem, seed: int, turn: int, max_flops: int | None, part: Problem | None) -> ParityCase:
    """The problem with the profiles in turns, each turn begun with another one."""
    names = tuple(PROFILES)
    first = (seed + turn * len(names) // _RECHECKS) % len(names)
    return problem_case(problem, seed, max_flops, (*names[first:], *names[:first]), part)


def draw_cases(problem: Problem, seed: int, max_flops: int | None = None) -> tuple[ParityCase, ...]:
    """The cases of one candidate, without a pool: for tests of kernels.

    Args:
        problem: what the kernel is for.
        seed: another seed gives other inputs and other profiles.
        max_flops: as for :func:`build_pool`.
    """
    order = np.random.default_rng(seed).permutation(len(PROFILES))
    names = [tuple(PROFILES)[index] for index in order]
    plans = plans_for(problem)
    small = [plan.case(problem, names[index % len(names)], seed) for index, plan in enumerate(plans)]
    return (*small, problem_case(problem, seed, max_flops))
