"""Check that every tunable of a family has an effect: two of its values yield other machine code or another launch.

A tunable without effect multiplies the search space and makes every search slower. The rendered constant in ``struct
Cfg`` is no effect; machine code is compared as bytes of its sections.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from evoengine.device.workers.pool import WorkerPool
from evoengine.engine.checks.tunable_effects import Built, FamilyCheck, Trace
from evoengine.engine.workers.modules import COMPILE_WORKER_NAME, COMPILER_MODULES
from evoengine.errors import CandidateError, ProblemError, SearchSpaceError
from evoengine.kernel.compile.compiler import hash_machine_code
from evoengine.kernel.template.renderer import Template, TemplateLibrary
from evoengine.model import Config, Problem
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.deadlines import COMPILE_LIMIT_S
from evoengine.search.candidate.results import Compilation
from evoengine.space.data_dirs import data_dirs
from evoengine.space.moves.tunable_pairs import Pair, PairFinder
from evoengine.space.search_space import SearchSpace
from evoengine.target import TARGETS, Target

_Build = Callable[[Config], "Future[Compilation]"]

THOROUGH_BASES: Final = 3
"""Configs in which the verb compiles every value of a tunable, whether an effect was found before or not."""
_MOST_BASES: Final = 8
"""Configs in which a tunable is varied until an effect is found."""


_MUCH_WORK: Final = 64
"""Batch size of the variants with more work than any GPU runs at once."""


def check_family(
    space: SearchSpace,
    problem: Problem,
    target: Target,
    cache_dir: Path | None,
    *,
    bases: int = 0,
    progress: Callable[[str], object] = lambda _: None,
) -> FamilyCheck:
    """Compiles configs that differ in one tunable until each tunable has shown an effect.

    Tunables without effect for the problem are tried for further problems with a causal mask, grouped heads and the
    other features that the family supports.

    Args:
        space: Search space of the family.
        problem: Problem to compile for first.
        target: GPU to compile for; replaced by one that the family supports if it does not support this one.
        cache_dir: Folder of the compile cache; None disables it.
        bases: Configs in which every value is compiled even if an effect was found before.
        progress: Callback that receives a line before each round of compilations.

    Raises:
        ProblemError: The family supports neither the problem nor another GPU for it.
        SearchSpaceError: The space has no valid config for the problem.
        TemplateError: The template is malformed.
    """
    template = TemplateLibrary(*data_dirs("templates")).load_for(space)
    target = _supporting(template, problem, target)
    problems = _problems(template, problem, target)
    setups = tuple(BuildSetup((one,), target, target.arch, (space,), (template.root,), cache_dir) for one in problems)
    traces = {tunable.name: Trace(tunable) for tunable in space.tunables}
    tried: list[Problem] = []
    workers = len(os.sched_getaffinity(0))
    make = partial(ProblemsBuilder, setups)
    with WorkerPool(make, workers, COMPILE_LIMIT_S, name=COMPILE_WORKER_NAME, preload=COMPILER_MODULES) as compilers:
        for number, one in enumerate(problems):
            undecided = [trace for trace in traces.values() if not trace.is_decided]
            finder = _finder(space, one, target, required=number == 0) if undecided else None
            if finder is not None:
                tried.append(one)
                comparer = _Comparer(partial(compilers.submit, "build", number), one, progress)
                comparer.run(undecided, finder, 0 if number else bases)
    effects = tuple(trace.result() for trace in traces.values())
    return FamilyCheck(space, target, tuple(tried), effects)


def _finder(space: SearchSpace, problem: Problem, target: Target, *, required: bool) -> PairFinder | None:
    """Returns the pairs of a problem's space; None for a problem without a valid config, unless it is required."""
    try:
        return PairFinder(space, problem, target)
    except SearchSpaceError:
        if required:
            raise
        return None


def _supporting(template: Template, problem: Problem, target: Target) -> Target:
    """Returns the target, or the first known one that the family supports for the problem.

    Raises:
        ProblemError: There is none.
    """
    for one in (target, *TARGETS.values()):
        if template.supports(problem, one.arch) is None:
            return one
    raise ProblemError(template.supports(problem, target.arch) or "")


class ProblemsBuilder:
    """Renders and compiles configs for several problems. Lives in a compile worker.

    Args:
        setups: Setups of the problems.
    """

    def __init__(self, setups: tuple[BuildSetup, ...]) -> None:
        self._setups = setups
        self._builders: dict[int, Builder] = {}

    def build(self, number: int, config: Config) -> Compilation:
        """Builds a config for the problem of a setup, by index."""
        if number not in self._builders:
            self._builders[number] = Builder(self._setups[number])
        return self._builders[number].build(config)


def _problems(template: Template, problem: Problem, target: Target) -> tuple[Problem, ...]:
    """Returns the problem, and variants of it with more work and with further features that the family supports."""
    queries, keys = problem.seq_q, problem.seq_kv
    plain = replace(problem, kv_heads=problem.heads, window_left=None, window_right=None, lengths_q=(), lengths_kv=())
    grouped = replace(plain, batch=_MUCH_WORK, heads=4 * plain.heads, kv_heads=plain.heads)
    variants = (
        replace(plain, causal=True),
        grouped,
        replace(grouped, causal=True),
        replace(plain, causal=False, window_left=keys // 2, window_right=1 + keys // 4),
        replace(plain, softcap=20.0, sink=True, lse=True),
        replace(plain, batch=2, lengths_q=(queries, queries), lengths_kv=(keys, 1)),
    )
    able = (one for one in variants if template.supports(one, target.arch) is None)
    return tuple(dict.fromkeys((problem, *able)))


class _Comparer:
    """Compiles pairs for one problem."""

    def __init__(self, build: _Build, problem: Problem, progress: Callable[[str], object]) -> None:
        self._build = build
        self._problem = problem
        self._sizes = _sizes(problem)
        self._progress = progress
        self._built: dict[Config, Built] = {}

    def run(self, traces: Sequence[Trace], finder: PairFinder, bases: int) -> None:
        """Compares pairs of each tunable until it has an effect; in the first ``bases`` configs all pairs."""
        waiting: dict[str, Iterator[Pair]] = {}
        first: list[tuple[Trace, Pair]] = []
        for trace in traces:
            groups = finder.groups(trace.tunable.name, max(bases, _MOST_BASES))
            first += [(trace, pair) for group in itertools.islice(groups, bases) for pair in group]
            waiting[trace.tunable.name] = itertools.chain.from_iterable(groups)
        self._compare(first)
        count = 1
        while True:
            pairs = [
                (trace, pair)
                for trace in traces
                if not trace.is_decided
                for pair in itertools.islice(waiting[trace.tunable.name], count)
            ]
            if not pairs:
                return
            self._compare(pairs)
            count *= 2  # a tunable without effect so far gets more attempts in one round, to use all workers

    def _compare(self, pairs: Sequence[tuple[Trace, Pair]]) -> None:
        self._compile(config for _, pair in pairs for config in (pair.base, pair.other))
        for trace, pair in pairs:
            trace.add(pair, self._problem, self._built[pair.base], self._built[pair.other])

    def _compile(self, configs: Iterable[Config]) -> None:
        new = [config for config in dict.fromkeys(configs) if config not in self._built]
        if not new:
            return
        self._progress(f"compiling {len(new)} configs for {self._problem.key}")
        futures = [(config, self._build(config)) for config in new]
        for config, future in futures:
            try:
                self._built[config] = _identity(future.result(), self._sizes)
            except CandidateError as error:
                self._built[config] = Built("", reason=str(error))


def _sizes(problem: Problem) -> tuple[Problem, ...]:
    """Returns the problem and a larger one: a tunable may change the launch of large problems only."""
    return problem, replace(
        problem,
        lengths_q=(),
        lengths_kv=(),
        batch=3 * problem.batch,
        heads=16 * problem.heads,
        kv_heads=16 * problem.kv_heads,
        seq_q=8 * problem.seq_q + 1,
        seq_kv=8 * problem.seq_kv + 1,
    )


def _identity(compilation: Compilation, sizes: Sequence[Problem]) -> Built:
    """Returns what distinguishes a kernel, also of one that needs more resources than the target has."""
    source, binary = compilation.source, compilation.binary
    if source is None or binary is None:
        return Built("", reason=f"{compilation.status.value}: {compilation.reason}")
    launch = source.launch
    facts = [(launch.steps(problem), launch.workspace(problem)) for problem in sizes]
    return Built(hash_machine_code(binary), (*facts, binary.resources, binary.further))
