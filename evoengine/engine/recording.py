"""Records the configs of a space, or a sample of them, as a landscape; a later call with the same options resumes."""

from __future__ import annotations

import hashlib
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from evoengine import __version__
from evoengine.engine.families import Family
from evoengine.engine.options.verbs import RecordOptions
from evoengine.engine.progress_lines import ObserverFactory
from evoengine.engine.search_plan import SearchPlan, make_plan
from evoengine.engine.search_services import open_services
from evoengine.engine.subspace import WHOLE, Share, countable, restricted, shared, with_neighbours
from evoengine.engine.unfinished_recording import check_alone, check_output, discard, shared_database
from evoengine.errors import NothingFoundError, UsageError
from evoengine.landscape.landscape import MAX_CONFIGS, Landscape, LandscapeSource, RecordedFamily
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Config, Evaluation
from evoengine.search.candidate.setup import Setup
from evoengine.search.events import Observer
from evoengine.search.forecast.choice import fastest_by_forecast
from evoengine.search.landscape_facts import (
    describe_baseline,
    describe_checks,
    describe_clocks,
    describe_stages,
    evaluations_by_family,
)
from evoengine.search.loop import Search
from evoengine.search.settings import SearchResult, SearchSettings, StopReason
from evoengine.search.warmstart.resume import start_strategy

_SAMPLED: Final = "random"
"""Strategy that samples families evenly, and the unseen configs of a family with equal probability."""
_SEARCHED: Final = "evolution"
"""Strategy that proposes configs likely to be faster than the best so far; they are not a uniform sample."""
_NO_CHAMPION: Final = math.inf
"""Acceptance threshold of a recording: no kernel is inspected or timed again in a duel."""
_KEY_DIGITS: Final = 16
_SAMPLES_PER_WARMUP: Final = 5
"""Samples per warm-up round: few samples are requested for slow kernels, which need a shorter warm-up."""


@dataclass(frozen=True)
class Recording:
    """Outcome of a recording."""

    result: SearchResult
    stages: str
    """Seconds by stage, in words; empty if unknown."""
    landscape: Landscape | None
    """None if the recording stopped early and nothing is to be written yet."""

    @property
    def stopped(self) -> bool:
        """Whether configs are left to record."""
        return self.result.stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT)


@contextmanager
def recorded_landscape(options: RecordOptions, observe: ObserverFactory) -> Iterator[Recording]:
    """Records a landscape, or continues an unfinished recording.

    The database of a complete recording is removed when the block ends without an error.

    Args:
        options: Options of the recording.
        observe: Function that makes the observer of the evaluations.

    Yields:
        The recording.

    Raises:
        UsageError: The file exists or is a database, or options contradict each other.
        NothingFoundError: No config could be evaluated.
        EvoEngineError: The device cannot be used.
    """
    check_output(options)
    with shared_database(options.unfinished) as shared_by:
        done = _record(options, observe)
        yield done
        if not done.stopped:
            discard(options.unfinished, shared_by)


def _record(options: RecordOptions, observe: ObserverFactory) -> Recording:
    if options.sample_size is not None and options.sample_size > MAX_CONFIGS:
        raise UsageError(f"--count {options.sample_size}: a landscape has at most {MAX_CONFIGS:,} configs")
    share = Share.parse(options.part)
    plan = make_plan(options.search_options())
    if plan.replay is not None:
        raise UsageError("a replay is a recording already: record on cuda or on the emulator")
    if share != WHOLE and options.sample_size is not None:
        raise UsageError(f"--part {share}: parts divide the whole space: give --all too")
    assert plan.target is not None, "only a replay has no target"
    plan = replace(plan, families=restricted(plan.families, plan.problem, plan.target, options.only))
    if options.with_failing:
        plan = replace(plan, families=with_neighbours(plan.families))
    searched = replace(plan, families=shared(plan.families, share))
    budget = countable(searched.valid) if options.sample_size is None else options.sample_size
    with Leaderboard(f"sqlite:///{options.unfinished}") as board:
        study = board.open_study(_study_key(plan, options))
        check_alone(board, study, options)
        with observe(plan, f"record    {_sampling(plan, options, options.sample_size)}") as observer:
            result = _evaluate(searched, options, budget, board, study, observer)
        stages = describe_stages(entry.evaluation for entry in board.evaluations(study))
        done = Recording(result, stages, None)
        if done.stopped and not (options.early and result.stop is StopReason.TIME_LIMIT):
            return done
        whole = not done.stopped and options.sample_size is None
        return replace(done, landscape=_landscape(plan, options, board.evaluations(study), whole=whole))


def _evaluate(
    plan: SearchPlan, options: RecordOptions, budget: int, board: Leaderboard, study: Study, observer: Observer
) -> SearchResult:
    settings = SearchSettings(
        budget=budget,
        strategy=_strategy(options),
        seed=options.seed,
        accept_threshold=_NO_CHAMPION,
        deadline_s=options.time_limit_s,
    ).paced_for(plan.device)
    starts = [*_fast_by_forecast(plan, options), *plan.valid.starts()]
    strategy = start_strategy(settings, plan.valid, board, study, starts)
    with ExitStack() as stack:
        compiler, examiner = open_services(plan, stack, change=partial(_in_full, options))
        return Search(settings, board, study, strategy, compiler, examiner, observer).run()


def _strategy(options: RecordOptions) -> str:
    return _SEARCHED if options.by_search else _SAMPLED


def _fast_by_forecast(plan: SearchPlan, options: RecordOptions) -> list[Config]:
    """Configs that the forecast expects to be fast: half of them the first of a search, half drawn from the others.

    Raises:
        UsageError: The forecast finds fewer than requested.
    """
    wanted = options.by_forecast
    if not wanted:
        return []
    choice = fastest_by_forecast(plan.valid, plan.forecasts, options.seed, -(-wanted // 2))
    others = [config for config in choice.candidates if config not in set(choice.opening)]
    drawn = np.random.default_rng(options.seed).permutation(len(others))[: wanted - len(choice.opening)]
    found = [*choice.opening, *(others[place] for place in sorted(drawn))]
    if len(found) < wanted:
        raise UsageError(f"--by-forecast {wanted}: the forecast finds only {len(found)} fast configs")
    return found


def _in_full(options: RecordOptions, setup: Setup) -> Setup:
    """Measures every config in full, however slow: a landscape holds slow configs too."""
    parts = []
    for part in setup.parts:
        pool = part.pool if options.small_cases else replace(part.pool, shapes=())
        warmup = max(1, min(part.plan.warmup, options.samples // _SAMPLES_PER_WARMUP))
        plan = replace(part.plan, race=None, samples=options.samples, warmup=warmup)
        parts.append(replace(part, pool=pool, plan=plan))
    return replace(setup, parts=tuple(parts))


def _study_key(plan: SearchPlan, options: RecordOptions) -> StudyKey:
    """The key of the recording's study: besides a search's facts, what is recorded and how it is checked and timed."""
    share = str(Share.parse(options.part))
    failing = ("with failing",) if options.with_failing else ()
    chosen = (options.by_forecast,) if options.by_forecast else ()
    facts = (plan.families.key, sorted(options.only), options.small_cases, options.samples, share, *failing, *chosen)
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:_KEY_DIGITS]
    return replace(plan.study_key, strategy=_strategy(options), space_key=key)


def _landscape(plan: SearchPlan, options: RecordOptions, stored: list[Stored], *, whole: bool) -> Landscape:
    outcomes = evaluations_by_family(stored)
    evaluations = [entry.evaluation for entry in stored]
    assert plan.target is not None, "only a replay has no target"
    if not outcomes:
        raise NothingFoundError("no config could be evaluated: nothing is written")
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
            command=_command(options),
            checks=_checks(options, evaluations),
            sampling=_sampling(plan, options, None if whole else sum(map(len, outcomes.values()))),
            clocks=describe_clocks(evaluations),
            baseline=describe_baseline(evaluations),
        ),
    )


def _checks(options: RecordOptions, evaluations: list[Evaluation]) -> str:
    checks = describe_checks(evaluations, small_cases=options.small_cases)
    return f"{checks}; a time is the median of {options.samples} samples" if _is_measured(evaluations) else checks


def _is_measured(evaluations: list[Evaluation]) -> bool:
    return any(e.timing is not None and not e.timing.predicted for e in evaluations)


def _command(options: RecordOptions) -> str:
    """The command line, without the folder of the output, which belongs to this machine."""
    words = (word.replace(str(options.output), options.output.name) for word in sys.argv[1:])
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


def _sampling(plan: SearchPlan, options: RecordOptions, count: int | None) -> str:
    """Which configs are recorded: a number of them, or all if there is no count."""
    share = Share.parse(options.part)
    what = "the whole space" if count is None else f"{count} configs, {_drawn(options)}"
    only = f", only {' '.join(options.only)}" if options.only else ""
    part = "" if share == WHOLE else f"part {share} of "
    kind = "configs, excluded neighbours included" if options.with_failing else "valid configs"
    first = f"{options.by_forecast} by forecast and the starts first" if options.by_forecast else "the starts first"
    return f"{part}{what} of {plan.valid.count.of(kind)}{only}; seed {options.seed}; {first}"


def _drawn(options: RecordOptions) -> str:
    return "proposed by a search," if options.by_search else "drawn uniformly"
