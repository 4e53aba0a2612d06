"""Checks and tunes variants by ordinary searches that share one set of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from evoengine.device.workers.pool import WorkerPool
from evoengine.engine.families import choose_families
from evoengine.engine.search_plan import SearchPlan
from evoengine.engine.search_services import open_services
from evoengine.engine.session import Session
from evoengine.errors import CandidateError
from evoengine.evolution.counters import COUNTING_LIMIT_S, KernelCounter, KernelCounts
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.records import Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Region, Status, Value, Variant
from evoengine.search.candidate.jobs import Compile, CompileVariant, Job, JobService, ResultT
from evoengine.search.events import Observer, SilentObserver
from evoengine.search.settings import StopReason
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace

MOST_STARTS: Final = 4
"""Named starts that are compiled to tell two variants apart."""
_GATE_STAGES: Final[Mapping[Status, str]] = {
    Status.INVALID_CONFIG: "space",
    Status.RENDER_FAILED: "render",
    Status.COMPILE_FAILED: "compile",
    Status.RESOURCE_LIMIT: "compile",
}
"""Stage at which a checked config ended; every other status is the gate's."""


@dataclass(frozen=True)
class Tuned:
    """Result of checking or tuning one variant."""

    best: Row | None
    """Fastest correct row."""
    failure: str
    """Stage that rejected the checked config; empty if it is correct."""
    reason: str
    code_hash: str
    """Machine code of the checked config."""
    candidates: int
    stop: StopReason

    @property
    def unfinished(self) -> bool:
        """Whether it was stopped by the user or the time limit; the same call goes on."""
        return self.stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT)


class VariantCompiler:
    """A :class:`~evoengine.search.candidate.jobs.JobService` that compiles variants which its workers do not know yet.

    Args:
        service: Compile workers.
        variants: Variants by name; may grow.
    """

    def __init__(self, service: JobService, variants: Mapping[str, Variant]) -> None:
        self._service = service
        self._variants = variants

    @property
    def workers(self) -> int:
        return self._service.workers

    @property
    def lost(self) -> tuple[str, ...]:
        return self._service.lost

    def supports(self, kind: type[Job[Any]]) -> bool:
        return self._service.supports(kind)

    def submit(self, job: Job[ResultT]) -> Any:
        """Starts a job; a compilation of a variant is sent with its patch."""
        if isinstance(job, Compile) and job.config.family in self._variants:
            return self._service.submit(CompileVariant(job.config, self._variants[job.config.family]))
        return self._service.submit(job)


class VariantSearches:
    """Workers and spaces of an evolution; close it.

    Args:
        plan: Plan of a search of the unchanged family; its device, settings and leaderboard serve all variants.
        variants: Variants of earlier runs.
        board: Leaderboard of the plan.
        observer: Receives the events of the searches.
    """

    def __init__(
        self, plan: SearchPlan, variants: Sequence[Variant], board: Leaderboard, observer: Observer | None = None
    ) -> None:
        self.plan = plan
        self.variants = {variant.name: variant for variant in variants}
        self._board = board
        self._observer = observer or SilentObserver()
        self._stack = ExitStack()
        self._services: tuple[JobService, JobService] | None = None
        self._counter: WorkerPool | None = None

    def close(self) -> None:
        """Ends the workers."""
        self._stack.close()

    @property
    def library(self) -> TemplateLibrary:
        """Templates with all variants."""
        return TemplateLibrary(*data_dirs("templates"), variants=tuple(self.variants.values()))

    def add(self, variant: Variant) -> str:
        """Makes a variant known and returns its template hash.

        Raises:
            PatchError: Its patch does not apply, or one of its tunables cannot be stated.
            SearchSpaceError: One of its tunables or constraints is invalid.
            TemplateError: The patched template is malformed.
        """
        self.variants[variant.name] = variant
        try:
            return self.library.load_for(self.space(variant.name)).template_hash
        except Exception:
            del self.variants[variant.name]
            raise

    def space(self, family: str) -> SearchSpace:
        """Returns the search space of the family or of a variant."""
        base = self.plan.families.taken[0].space
        return base if family == base.family else find_space(family, tuple(self.variants.values()))

    def regions(self, family: str) -> tuple[Region, ...]:
        """Returns the regions of the family's or a variant's files."""
        return self.library.regions(family)

    def plan_for(
        self, family: str, budget: int, starts: Sequence[Config], seconds: float | None, *, transfer: bool = True
    ) -> SearchPlan:
        """Returns the plan of an ordinary search of one variant.

        Args:
            family: Name of the family or variant.
            budget: Distinct candidates of its study.
            starts: Configs to try first.
            seconds: Time limit; None for none.
            transfer: Whether rows of other problems and GPUs may be tried before the starts.
        """
        plan = self.plan
        assert plan.target is not None, "nothing is replayed"
        request = replace(plan.request, family=family, budget=budget, time_limit_s=seconds, energy=False)
        if not transfer:
            request = replace(request, transfer=False)
        families = choose_families((self.space(family),), plan.problem, plan.target, tuple(self.variants.values()))
        return replace(plan, request=request, families=families, starts=tuple(starts))

    def check(self, family: str, config: Config, seconds: float | None = None) -> Tuned:
        """Evaluates one config of a variant: render, compile, resource gate, parity gate and time."""
        return self.tune(family, 1, (config,), seconds, transfer=False)  # a transferred config would take its place

    def tune(
        self,
        family: str,
        budget: int,
        starts: Sequence[Config],
        seconds: float | None = None,
        *,
        transfer: bool = True,
    ) -> Tuned:
        """Searches a variant; called again with a larger budget it goes on.

        Args:
            family: Name of the family or variant.
            budget: Distinct candidates of its study.
            starts: Configs to try first; the first one is that which was checked.
            seconds: Time limit; None for none.
            transfer: Whether rows of other problems and GPUs may be tried before the starts.
        """
        plan = self.plan_for(family, budget, starts, seconds, transfer=transfer)
        with Session(plan, services=self._open()) as session:
            result = session.run(self._observer)
            rows = self._board.rows(RowFilter(study_id=session.study.id, statuses=()))
            checked = self._checked(rows, starts)
            correct = [row for row in rows if row.status is Status.OK and row.median_us is not None]
            best = min(correct, key=lambda row: row.median_us or 0.0, default=None)
        failed = checked is not None and checked.status not in (Status.OK, Status.DUPLICATE, Status.PRUNED)
        return Tuned(
            best=best,
            failure=_GATE_STAGES.get(checked.status, "gate") if checked is not None and failed else "",
            reason=f"{checked.status.value}: {checked.reason}" if checked is not None and failed else "",
            code_hash=checked.code_hash if checked is not None else "",
            candidates=result.progress.new,
            stop=result.stop,
        )

    def tune_more(self, family: str, configs: Sequence[Config], seconds: float | None = None) -> Tuned:
        """Evaluates configs as a continuation of a variant's study.

        Args:
            family: Name of the family or variant.
            configs: Configs to evaluate; those that the study holds are not evaluated again.
            seconds: Time limit; None for none.
        """
        with Session(self.plan_for(family, 1, (), seconds)) as session:
            known = session.board.evaluations(session.study)
            evaluated = session.evaluated
        done = {one.evaluation.config for one in known}
        new = [config for config in configs if config not in done]
        return self.tune(family, evaluated + len(new), new, seconds, transfer=False)

    @staticmethod
    def _checked(rows: Sequence[Row], starts: Sequence[Config]) -> Row | None:
        if not starts:
            return None
        values = starts[0].as_dict()
        return next((row for row in rows if dict(row.config) == values), None)

    def starts(self, family: str, values: Mapping[str, Value]) -> tuple[Config, ...]:
        """Returns a config with these values, and the defaults of tunables that they lack, if it is valid.

        Args:
            family: Name of the family or variant.
            values: Values of another variant's config; unknown names are left out.
        """
        plan, space = self.plan, self.space(family)
        assert plan.target is not None, "nothing is replayed"
        variant = self.variants.get(family)
        added = {one.name: one.default for one in variant.patch.tunables} if variant is not None else {}
        complete = {one.name: values.get(one.name, added.get(one.name, one.values[0])) for one in space.tunables}
        if any(not one.holds(complete[one.name]) for one in space.tunables):
            return ()
        if space.check(complete, plan.problem, plan.target):
            return ()
        return (space.config(complete),)

    def kernel(self, config: Config) -> Kernel | None:
        """Builds a config again; None if it no longer builds."""
        compiler, _ = self._open()
        kernel: Kernel | None = compiler.submit(Compile(config)).result().kernel
        return kernel

    def differing_starts(self, family: str, other: str) -> tuple[Config, ...]:
        """Returns named starts that two variants compile to different machine code; nothing runs.

        Args:
            family: Variant whose configs are returned.
            other: Variant or family with the same machine code in another config.
        """
        plan, compiler = self.plan, self._open()[0]
        assert plan.target is not None, "nothing is replayed"
        space, jobs = self.space(family), []
        for start in space.starts[:MOST_STARTS]:
            pair = [config for name in (family, other) for config in self.starts(name, dict(start.values))]
            if len(pair) == len((family, other)):
                jobs.append((pair[0], [compiler.submit(Compile(config)) for config in pair]))
        found = []
        for config, compilations in jobs:
            own, theirs = [one.result() for one in compilations]
            if own.status is Status.OK and own.code_hash != theirs.code_hash:
                found.append(config)
        return tuple(found)

    def counts(self, kernel: Kernel, *, lines: bool) -> KernelCounts | None:
        """Counts a kernel on the emulator; None if it cannot be counted."""
        plan = self.plan
        if self._counter is None:
            assert plan.target is not None, "nothing is replayed"
            make = partial(KernelCounter, plan.problem, plan.target, usable_cache_dir())
            pool = WorkerPool(make, 1, COUNTING_LIMIT_S, name="counter", preload=("evoengine.evolution.counters",))
            self._counter = self._stack.enter_context(closing(pool))
        try:
            found: KernelCounts = self._counter.submit("count", kernel, lines).result()
        except CandidateError:
            return None
        return found

    def _open(self) -> tuple[JobService, JobService]:
        if self._services is None:
            compiler, examiner = open_services(self.plan, self._stack)
            self._services = VariantCompiler(compiler, self.variants), examiner
        return self._services
