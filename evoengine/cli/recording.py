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
from evoengine.cli.console import make_console
from evoengine.cli.exits import INTERRUPTED, OK
from evoengine.cli.families import Families, Family
from evoengine.cli.files import write_whole
from evoengine.cli.progress import ProgressDisplay
from evoengine.cli.request import SearchRequest
from evoengine.cli.search_verb import space_lines
from evoengine.cli.wiring import Plan, make_plan, open_services
from evoengine.errors import NothingFoundError, UsageError
from evoengine.landscape.file import pack_landscape
from evoengine.landscape.landscape import Landscape, Provenance, RecordedFamily
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Evaluation, Value
from evoengine.search.evaluate import Setup
from evoengine.search.events import Observer, SilentObserver
from evoengine.search.loop import Search
from evoengine.search.recording import (
    baseline_in_words,
    checks_in_words,
    clocks_in_words,
    outcomes_of_record,
)
from evoengine.search.session import SearchResult, SearchSettings, StopReason
from evoengine.search.start import start_strategy
from evoengine.space.tunables import Tunable

_STRATEGY: Final = "random"
"""Draws families evenly, and of each family all unseen configs with equal probability."""
_NO_DUELS: Final = 1.0
"""Nobody takes no time at all: the device measures, and is not kept busy with who is champion."""
_MOST_CONFIGS: Final = 10**6
"""More than any device gets through."""
_KEY_DIGITS: Final = 16


@dataclass(frozen=True)
class RecordRequest:
    """The options of ``landscape record``, parsed."""

    search: SearchRequest
    """Problem, device and families; its budget and strategy do not matter."""
    output: Path
    count: int | None
    """Distinct kernels to record; None for the whole space."""
    only: tuple[str, ...] = ()
    """``NAME=VALUE,VALUE``: the only values of a tunable to consider."""
    small_cases: bool = True
    """Whether the parity gate has its small cases, besides the problem itself."""
    force: bool = False

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
    if request.output.exists() and not request.force:
        raise UsageError(f"{request.output} exists: give --force to replace it, or another -o")
    plan = make_plan(request.search)
    if plan.replay is not None:
        raise UsageError("a replay is a recording already: record on cuda or on the emulator")
    plan = replace(plan, families=_restricted(plan, request.only))
    budget, notes = _budget(plan, request), make_console(stderr=True)
    if not quiet:
        _announce(notes, plan, request)
    with Leaderboard(f"sqlite:///{request.part}") as board:
        study = board.open_study(_study_key(plan, request))
        with ExitStack() as stack:
            observer: Observer = SilentObserver()
            if not quiet:
                observer = stack.enter_context(ProgressDisplay(notes, predicted=plan.device.predicted))
            result = _record(plan, request, budget, board, study, observer)
        if result.stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT):
            notes.print(f"{_speed(result)}; {request.part} holds it: the same command goes on from here", markup=False)
            return INTERRUPTED if result.stop is StopReason.INTERRUPTED else OK
        landscape = _landscape(plan, request, board.evaluations(study))
    content = pack_landscape(landscape)
    write_whole(request.output, content)
    _forget(request.part)
    if not quiet:
        notes.print(f"{_speed(result)}; wrote {request.output}, {len(content) / 1024:.0f} KiB", markup=False)
    return OK


def _record(
    plan: Plan, request: RecordRequest, budget: int, board: Leaderboard, study: Study, observer: Observer
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
        compiler, examiner = open_services(plan, stack, change=partial(_in_full, request.small_cases))
        return Search(settings, board, study, strategy, compiler, examiner, observer).run()


def _in_full(small_cases: bool, setup: Setup) -> Setup:
    """Every config is measured in full, however slow it is: a landscape knows its valleys and its peaks."""
    pool = setup.pool if small_cases else replace(setup.pool, shapes=())
    return replace(setup, pool=pool, plan=replace(setup.plan, race=None))


def _budget(plan: Plan, request: RecordRequest) -> int:
    if request.count is not None:
        return request.count
    count = plan.valid.count
    if not count.exact or count.value > _MOST_CONFIGS:
        raise UsageError(f"{count.of('valid configs')} are too many for --all: give --count, or --only NAME=VALUE")
    return count.value


def _restricted(plan: Plan, only: tuple[str, ...]) -> Families:
    """The families with only some values of some tunables.

    Raises:
        UsageError: no family has such a tunable, or it cannot hold the value.
        SearchSpaceError: no config is left.
    """
    if not only:
        return plan.families
    wanted = dict(_tunable_and_values(text) for text in only)
    known = {tunable.name for family in plan.families.taken for tunable in family.space.tunables}
    for name in sorted(wanted.keys() - known):
        raise UsageError(f"--only {name}: no family has such a tunable; 'space' lists them")
    assert plan.target is not None, "only a replay has no target"
    taken = []
    for family in plan.families.taken:
        overrides = {
            tunable.name: [_value(tunable, text) for text in wanted[tunable.name]]
            for tunable in family.space.tunables
            if tunable.name in wanted
        }
        taken.append(replace(family, valid=family.space.build(plan.problem, plan.target, overrides=overrides)))
    return replace(plan.families, taken=tuple(taken))


def _tunable_and_values(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise UsageError(f"--only {text}: give NAME=VALUE, or several values with commas between")
    return name.strip(), [value.strip() for value in values.split(",")]


def _value(tunable: Tunable, text: str) -> Value:
    for value in tunable.values:
        if str(value) == text:
            return value
    raise UsageError(f"--only {tunable.name}={text}: choose from {', '.join(map(str, tunable.values))}")


def _study_key(plan: Plan, request: RecordRequest) -> StudyKey:
    """What else than a search's makes it the same recording: the values that are left, and what the gate looks at."""
    facts = repr((plan.families.key, sorted(request.only), request.small_cases))
    key = hashlib.sha256(facts.encode()).hexdigest()[:_KEY_DIGITS]
    return replace(plan.study_key, strategy=_STRATEGY, space_key=key)


def _landscape(plan: Plan, request: RecordRequest, stored: list[Stored]) -> Landscape:
    outcomes = outcomes_of_record(stored)
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
        provenance=Provenance(
            evoengine=__version__,
            recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=_command(request),
            checks=checks_in_words(evaluations, small_cases=request.small_cases),
            sampling=_sampling(plan, request),
            clocks=clocks_in_words(evaluations),
            baseline=baseline_in_words(evaluations),
        ),
    )


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


def _sampling(plan: Plan, request: RecordRequest) -> str:
    what = "the whole space" if request.count is None else f"{request.count} distinct kernels, drawn uniformly"
    only = f", only {' '.join(request.only)}" if request.only else ""
    return f"{what} of {plan.valid.count.of('valid configs')}{only}; seed {request.search.seed}; the starts first"


def _announce(notes: Console, plan: Plan, request: RecordRequest) -> None:
    said = "PREDICTED" if plan.device.predicted else "measured"
    notes.print(f"problem   {plan.problem.key}, {said} on {plan.device.name}", markup=False)
    for line in space_lines(plan.families):
        notes.print(line, markup=False)
    notes.print(f"record    {_sampling(plan, request)}", markup=False)


def _speed(result: SearchResult) -> str:
    progress = result.progress
    rate = f"{progress.new} new in {progress.elapsed_s:.0f} s, {progress.rate:.1f} a second"
    return f"{progress.evaluated} distinct kernels, {rate}, {progress.duplicates} duplicates"


def _forget(part: Path) -> None:
    """Removes the database of a recording that is finished, with what SQLite keeps beside it."""
    for name in (part.name, f"{part.name}-wal", f"{part.name}-shm"):
        part.with_name(name).unlink(missing_ok=True)
