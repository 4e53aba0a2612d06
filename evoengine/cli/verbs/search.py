"""``search``: says what it will do, does it, and says what came out."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from evoengine.cli.exit_codes import INTERRUPTED, OK
from evoengine.cli.options.output_options import OutputOptions
from evoengine.cli.output.console import command_name, make_console, print_json
from evoengine.cli.output.event_file import log_path
from evoengine.cli.output.progress import ProgressDisplay
from evoengine.cli.output.ranking_table import config_text
from evoengine.cli.output.run_summary import effort_lines
from evoengine.cli.verbs.leaderboard import row_document
from evoengine.cli.verbs.search_transfer import transfer_document, transfer_lines
from evoengine.device.tools.sanitizer import find_sanitizer
from evoengine.engine.families import Families, Family
from evoengine.engine.options import SearchOptions
from evoengine.engine.prefetch import EarlyImports
from evoengine.engine.session import SearchPlan, Session, make_plan
from evoengine.errors import NothingFoundError, UsageError
from evoengine.leaderboard.records import Row, RowFilter
from evoengine.search.event_log import EventLog, Observers
from evoengine.search.events import Observer
from evoengine.search.settings import SearchResult, StopReason


def run_search(request: SearchOptions, voice: OutputOptions, imports: EarlyImports | None = None) -> int:
    """Runs or resumes a search.

    Args:
        request: what is searched.
        voice: how to speak of it.
        imports: of the workers, where they were begun before.

    Returns:
        The exit code.

    Raises:
        NothingFoundError: it ended without a correct kernel.
        EvoEngineError: it could not run.
    """
    json_output, quiet = voice.json_output, voice.quiet
    notes = make_console(stderr=True)
    out = notes if json_output else make_console()
    plan = make_plan(request)
    with Session(plan, imports) as session:
        before = session.evaluated
        session.begin()
        if not quiet:
            _announce(out, plan)
            if request.starts and session.imported:
                note = f"imported  {len(session.imported)} configs of others are tried first: claims until proven here"
                out.print(note, markup=False)
            for line in transfer_lines(session.transferred):
                out.print(line, markup=False)
            if session.expected:
                said = "configs that the latency model expects to be fastest are tried first"
                out.print(f"forecast  {len(session.expected)} {said}")
        if before >= request.budget and not quiet:
            out.print(f"the study is complete: {before} of {request.budget} candidates are evaluated")
        result = _run(session, notes, plan, voice)
        if json_output:
            print_json(_document(plan, session, result))
        else:
            _summarise(out, plan, result)
        if result.stop is StopReason.INTERRUPTED:
            return INTERRUPTED
        if result.progress.best_us is None:
            raise NothingFoundError(_nothing(session, result))
    return OK


def _run(session: Session, notes: Console, plan: SearchPlan, voice: OutputOptions) -> SearchResult:
    with ExitStack() as stack:
        observers: list[Observer] = []
        if not voice.quiet:
            display = ProgressDisplay(notes, predicted=plan.device.predicted, verbose=voice.verbose)
            observers.append(stack.enter_context(display))
        log = _open_log(session, voice)
        if log is not None:
            stack.callback(_close_log, log, notes)
            observers.append(log)
        return session.run(Observers(*observers))


def _open_log(session: Session, voice: OutputOptions) -> EventLog | None:
    """The log of the study. Without one that nobody asked for the search goes on."""
    if voice.no_log:
        return None
    try:
        return EventLog(log_path(session.board, session.study, voice.log), session.study)
    except UsageError:
        if voice.log is not None:
            raise
        return None


def _close_log(log: EventLog, notes: Console) -> None:
    log.close()
    if log.fault:
        notes.print(f"warning: {log.fault}", markup=False)


def _announce(out: Console, plan: SearchPlan) -> None:
    request, device = plan.request, plan.device
    for line in _problem_lines(plan):
        out.print(line, markup=False)
    compiled = f"compiled for {device.arch} by NVRTC {device.nvrtc or 'of a version not known'}"
    out.print(f"device    {_where(plan)}, {compiled}", markup=False)
    out.print(
        f"search    {request.strategy}, seed {request.seed}, {request.budget} candidates, {request.db}", markup=False
    )
    for line in space_lines(plan.families):
        out.print(line, markup=False)
    if request.sanitizer and device.kind == "cuda" and find_sanitizer() is None:
        out.print("finalists compute-sanitizer is not found: new champions are checked on the emulator only")


def _problem_lines(plan: SearchPlan) -> Iterator[str]:
    workload = plan.request.workload
    if workload is None:
        yield f"problem   {plan.problem.key}"
        return
    yield f"problem   {workload.key}, the weighted mean of"
    for problem, share in zip(workload.problems, workload.shares, strict=True):
        yield f"          {share:6.1%} {problem.key}"


def _where(plan: SearchPlan) -> str:
    device = plan.device
    if plan.replay is not None:
        said = "PREDICTED" if device.predicted else "measured"
        noise = "" if plan.replay.noise.quiet else f", with {plan.replay.noise}"
        return f"replay of {plan.replay.file}: times {said} on {plan.replay.landscape.device.name}{noise}"
    if device.predicted:
        why = f": {plan.choice.reason}" if plan.choice.reason else ""
        return f"times are PREDICTED on {device.name} (emulator{why})"
    labels = [place.label for place in plan.choice.places if place.label]
    number = f"{len(labels)} x " if len(labels) > 1 else ""
    return ", ".join([f"{number}{device.name}", *labels, f"driver {device.driver}"])


def space_lines(families: Families) -> Iterator[str]:
    """One line per family; what its constraints remove only where there is but one."""
    width = max(len(family.name) for family in families.taken)
    for number, family in enumerate(families.taken):
        valid = family.valid
        label = "space     " if number == 0 else " " * 10
        size = f"{valid.count.of('valid configs')} of {valid.cartesian_size:,} combinations"
        yield f"{label}{family.name:<{width}}  {size}"
    for family_out in families.left_out:
        yield f"left out  {family_out.reason}"
    if len(families.taken) == 1 and families.taken[0].valid.removed:
        valid = families.taken[0].valid
        shares = ((name, 100 * count.value / valid.cartesian_size) for name, count in valid.removed.items())
        yield "removed   " + ", ".join(f"{name} {share:.1f} %" for name, share in shares)


def _summarise(out: Console, plan: SearchPlan, result: SearchResult) -> None:
    progress = result.progress
    out.print(
        f"{result.stop.value}: {progress.evaluated} of {progress.budget} candidates, {progress.new} new in "
        f"{progress.elapsed_s:.1f} s ({progress.rate:.2f}/s), {progress.duplicates} duplicates",
        markup=False,
    )
    counts = ", ".join(f"{count} {status.value}" for status, count in progress.counts.items())
    out.print(f"statuses  {counts or 'none'}", markup=False)
    if progress.new:
        for line in effort_lines(result):
            out.print(line, markup=False)
    if result.stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT):
        out.print("resume    the same command goes on from here", markup=False)
    if result.leader is not None:
        out.print(
            f"leader    {_time_of(result.leader)}, row {result.leader.id}: it is champion when compute-sanitizer has "
            "looked at it, too, which the next search for this problem on this GPU does first",
            markup=False,
        )
    best = result.champion or (result.elites[0] if result.elites else None)
    if best is None:
        return
    title = "champion" if result.champion else "fastest "
    out.print(f"{title}  {_time_of(best)}, row {best.id}", markup=False)
    out.print(f"config    {best.family}: {config_text(best.config.items())}", markup=False)
    db = "" if plan.request.db == SearchOptions(plan.problem).db else f" --db {shlex.quote(plan.request.db)}"
    out.print(f"next      {command_name()} leaderboard{db}", markup=False, soft_wrap=True)
    if plan.replay is None:  # a replay has no sources
        out.print(f"          {command_name()} export {best.id} -o best.cu{db}", markup=False, soft_wrap=True)


def _time_of(row: Row) -> str:
    time = f"{row.median_us:.2f} us {'predicted' if row.predicted else 'measured'} on {row.device}"
    return time if row.speedup is None else f"{time}, {row.speedup:.2f}x SDPA"


def _nothing(session: Session, result: SearchResult) -> str:
    counts = ", ".join(f"{count} {status.value}" for status, count in result.progress.counts.items())
    reasons = Counter(row.reason for row in session.board.rows(RowFilter(study_id=session.study.id, statuses=())))
    often = f", most often '{reasons.most_common(1)[0][0]}'" if reasons else ""
    return (
        f"no correct kernel among {result.progress.evaluated} candidates ({counts or 'none'}{often}): "
        "'leaderboard --status all' tells why each failed"
    )


def _family_document(family: Family) -> dict[str, Any]:
    valid = family.valid
    return {
        "family": family.name,
        "valid_configs": valid.size,
        "valid_configs_error": valid.count.error,
        "combinations": valid.cartesian_size,
        "removed": {name: count.value for name, count in valid.removed.items()},
    }


def _document(plan: SearchPlan, session: Session, result: SearchResult) -> dict[str, Any]:
    progress, request = result.progress, plan.request
    return {
        "problem": plan.study_key.scope.problem,
        "device": plan.device.name,
        "device_kind": plan.device.kind,
        "predicted": plan.device.predicted,
        "arch": plan.device.arch,
        "method": plan.method,
        "strategy": request.strategy,
        "seed": request.seed,
        "study_id": session.study.id,
        "valid_configs": plan.valid.size,
        "families": [_family_document(family) for family in plan.families.taken],
        "left_out": {family.name: family.reason for family in plan.families.left_out},
        "transferred": [transfer_document(entry) for entry in session.transferred],
        "stop": result.stop.value,
        "budget": progress.budget,
        "evaluated": progress.evaluated,
        "new": progress.new,
        "duplicates": progress.duplicates,
        "skipped": result.skipped,
        "counts": {status.value: count for status, count in progress.counts.items()},
        "elapsed_s": progress.elapsed_s,
        "candidates_per_s": progress.rate,
        "stage_seconds": dict(result.stage_seconds),
        "overhead_s": result.overhead_s,
        "overhead_ms_per_trial": result.overhead_ms_per_trial,
        "overhead_share": result.overhead_share,
        "overhead_of_work": result.overhead_of_work,
        "devices": result.devices,
        "lost": list(result.lost),
        "device_share": result.device_share,
        "measurements": dataclasses.asdict(result.measurements),
        "champion": None if result.champion is None else row_document(result.champion),
        "leader": None if result.leader is None else row_document(result.leader),
        "elites": [row_document(row) for row in result.elites],
    }
