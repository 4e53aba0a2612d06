"""``landscape record``: measures a space, or a sample of it, into a file; the same command goes on where it stopped."""

from __future__ import annotations

import hashlib
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from evoengine import __version__
from evoengine.bench.timer import MIN_SAMPLES
from evoengine.cli.exit_codes import INTERRUPTED, OK
from evoengine.cli.output.console import make_console
from evoengine.cli.output.files import write_whole
from evoengine.cli.output.progress import ProgressDisplay
from evoengine.cli.verbs.search import space_lines
from evoengine.engine.families import Family
from evoengine.engine.options import SearchOptions
from evoengine.engine.session import SearchPlan, make_plan, open_services
from evoengine.engine.subspace import WHOLE, Share, countable, restricted, shared
from evoengine.errors import NothingFoundError, UsageError
from evoengine.landscape.file import pack_landscape
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Evaluation
from evoengine.search.candidate.setup import Setup
from evoengine.search.events import Observer, SilentObserver
from evoengine.search.exhaustive_sweep import (
    describe_baseline,
    describe_checks,
    describe_clocks,
    describe_stages,
    evaluations_by_family,
)
from evoengine.search.loop import Search
from evoengine.search.settings import SearchResult, SearchSettings, StopReason
from evoengine.search.warmstart.resume import start_strategy

_STRATEGY: Final = "random"
"""Draws families evenly, and of each family all unseen configs with equal probability."""
_NO_DUELS: Final = 1.0
"""Nobody takes no time at all: the device measures, and is not kept busy with who is champion."""
_KEY_DIGITS: Final = 16
_SAMPLES_PER_WARMUP: Final = 5
"""Whoever takes few samples does so because a kernel is slow, and then a round warms up more."""


@dataclass(frozen=True)
class RecordRequest:
    """The options of ``landscape record``, parsed."""

    search: SearchOptions
    """Problem, device and families; its budget and strategy do not matter."""
    output: Path
    count: int | None
    """Distinct kernels to record; None for the whole space."""
    only: tuple[str, ...] = ()
    """``NAME=VALUE,VALUE``: the only values of a tunable to consider."""
    small_cases: bool = True
    """Whether the parity gate has its small cases, besides the problem itself."""
    force: bool = False
    samples: int = MIN_SAMPLES
    """Of each kernel."""
    early: bool = False
    """Whether to write what there is when the time limit ends it; it can go on all the same."""
    share: Share = WHOLE
    """Which of the configs to record, where several GPUs share the work."""

    @property
    def part(self) -> Path:
        """Where a recording that is not finished lies."""
        return self.output.with_name(f"{self.output.name}.part")


def run_record(request: RecordRequest, *, quiet: bool) -> int:
    """Records, or goes on recording.

    Returns:
        The exit code.

    Raises:
        UsageError: the file is there already, or an option makes no sense.
        NothingFoundError: not one config could be evaluated.
        EvoEngineError: it could not run.
    """
    if request.output.exists() and not request.force and not request.part.exists():
        raise UsageError(f"{request.output} exists: give --force to replace it, or another -o")
    plan = make_plan(request.search)
    if plan.replay is not None:
        raise UsageError("a replay is a recording already: record on cuda or on the emulator")
    if request.share != WHOLE and request.count is not None:
        raise UsageError(f"--part {request.share}: a part is one of the whole space; give --all too")
    assert plan.target is not None, "only a replay has no target"
    plan = replace(plan, families=restricted(plan.families, plan.problem, plan.target, request.only))
    searched = replace(plan, families=shared(plan.families, request.share))
    budget = countable(searched.valid) if request.count is None else request.count
    notes = make_console(stderr=True)
    if not quiet:
        _announce(notes, plan, request)
    with Leaderboard(f"sqlite:///{request.part}") as board:
        study = board.open_study(_study_key(plan, request))
        with ExitStack() as stack:
            observer: Observer = SilentObserver()
            if not quiet:
                observer = stack.enter_context(ProgressDisplay(notes, predicted=plan.device.predicted))
            result = _record(searched, request, budget, board, study, observer)
        stages = describe_stages(entry.evaluation for entry in board.evaluations(study))
        if stages and not quiet:
            notes.print(stages, markup=False)
        stopped = result.stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT)
        if stopped:
            notes.print(f"{_speed(result)}; {request.part} holds it: the same command goes on from here", markup=False)
        if stopped and not (request.early and result.stop is StopReason.TIME_LIMIT):
            return INTERRUPTED if result.stop is StopReason.INTERRUPTED else OK
        landscape = _landscape(plan, request, board.evaluations(study), whole=not stopped and request.count is None)
    content = pack_landscape(landscape)
    write_whole(request.output, content)
    if not stopped:
        _forget(request.part)
    if not quiet:
        notes.print(f"{_speed(result)}; wrote {request.output}, {len(content) / 1024:.0f} KiB", markup=False)
    return OK


def _record(
    plan: SearchPlan, request: RecordRequest, budget: int, board: Leaderboard, study: Study, observer: Observer
) -> SearchResult:
    settings = SearchSettings(
        budget=budget,
        strategy=_STRATEGY,
        seed=request.search.seed,
        accept_threshold=_NO_DUELS,
        deadline_s=request.search.time_limit_s,
    )
    strategy = start_strategy(settings, plan.valid, board, study, plan.valid.starts())
    with ExitStack() as stack:
        compiler, examiner = open_services(plan, stack, change=partial(_in_full, request))
        return Search(settings, board, study, strategy, compiler, examiner, observer).run()


def _in_full(request: RecordRequest, setup: Setup) -> Setup:
    """Every config is measured in full, however slow it is: a landscape knows its valleys and its peaks."""
    parts = []
    for part in setup.parts:
        pool = part.pool if request.small_cases else replace(part.pool, shapes=())
        warmup = max(1, min(part.plan.warmup, request.samples // _SAMPLES_PER_WARMUP))
        plan = replace(part.plan, race=None, samples=request.samples, warmup=warmup)
        parts.append(replace(part, pool=pool, plan=plan))
    return replace(setup, parts=tuple(parts))


def _study_key(plan: SearchPlan, request: RecordRequest) -> StudyKey:
    """What else than a search's makes it the same recording: the values that are left, and what the gate looks at."""
    facts = repr((plan.families.key, sorted(request.only), request.small_cases, request.samples, str(request.share)))
    key = hashlib.sha256(facts.encode()).hexdigest()[:_KEY_DIGITS]
    return replace(plan.study_key, strategy=_STRATEGY, space_key=key)


def _landscape(plan: SearchPlan, request: RecordRequest, stored: list[Stored], *, whole: bool) -> Landscape:
    outcomes = evaluations_by_family(stored)
    evaluations = [entry.evaluation for entry in stored]
    assert plan.target is not None, "only a replay has no target"
    if not outcomes:
        raise NothingFoundError("not one config could be evaluated: nothing is written")
    return Landscape(
        problem=plan.problem,
        device=plan.device,
        limits=plan.target.scope(),
        method=plan.method,
        families=tuple(
            _recorded(family, outcomes[family.name]) for family in plan.families.taken if family.name in outcomes
        ),
        provenance=LandscapeSource(
            evoengine=__version__,
            recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=_command(request),
            checks=_checks(request, evaluations),
            sampling=_sampling(plan, request, None if whole else sum(map(len, outcomes.values()))),
            clocks=describe_clocks(evaluations),
            baseline=describe_baseline(evaluations),
        ),
    )


def _checks(request: RecordRequest, evaluations: list[Evaluation]) -> str:
    checks = describe_checks(evaluations, small_cases=request.small_cases)
    return f"{checks}; a time is the median of {request.samples} samples" if _is_measured(evaluations) else checks


def _is_measured(evaluations: list[Evaluation]) -> bool:
    return any(e.timing is not None and not e.timing.predicted for e in evaluations)


def _command(request: RecordRequest) -> str:
    """The command line, without the folder of the output: it is of this machine alone."""
    words = (word.replace(str(request.output), request.output.name) for word in sys.argv[1:])
    return shlex.join(["evoengine", *words])


def _recorded(family: Family, outcomes: tuple[Evaluation, ...]) -> RecordedFamily:
    valid = family.valid
    first = {tunable.name: tunable.values[0] for tunable in valid.tunables}
    starts = tuple(replace(s, values=valid.repair(first | dict(s.values)).values) for s in family.space.starts)
    return RecordedFamily(
        space=replace(family.space, tunables=valid.tunables, starts=starts),
        space_hash=hashlib.sha256(Path(family.space.file).read_bytes()).hexdigest()[:_KEY_DIGITS],
        template_hash=family.template_hash,
        valid_configs=family.valid.size,
        evaluations=outcomes,
    )


def _sampling(plan: SearchPlan, request: RecordRequest, count: int | None) -> str:
    """Which configs they are: so many, or all where there is no count."""
    what = "the whole space" if count is None else f"{count} configs, drawn uniformly"
    only = f", only {' '.join(request.only)}" if request.only else ""
    part = "" if request.share == WHOLE else f"part {request.share} of "
    return f"{part}{what} of {plan.valid.count.of('valid configs')}{only}; seed {request.search.seed}; the starts first"


def _announce(notes: Console, plan: SearchPlan, request: RecordRequest) -> None:
    said = "PREDICTED" if plan.device.predicted else "measured"
    notes.print(f"problem   {plan.problem.key}, {said} on {plan.device.name}", markup=False)
    for line in space_lines(plan.families):
        notes.print(line, markup=False)
    notes.print(f"record    {_sampling(plan, request, request.count)}", markup=False)


def _speed(result: SearchResult) -> str:
    progress = result.progress
    rate = f"{progress.new} new in {progress.elapsed_s:.0f} s, {progress.rate:.1f} a second"
    return f"{progress.evaluated} distinct kernels, {rate}, {progress.duplicates} duplicates"


def _forget(part: Path) -> None:
    """Removes the database of a recording that is finished, with what SQLite keeps beside it."""
    for name in (part.name, f"{part.name}-wal", f"{part.name}-shm"):
        part.with_name(name).unlink(missing_ok=True)
