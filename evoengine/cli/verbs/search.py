"""``search``: prints the plan, runs the search and prints the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from evoengine.cli.exit_codes import INTERRUPTED, OK
from evoengine.cli.options.output_options import OutputOptions
from evoengine.cli.output.config_text import config_from_start
from evoengine.cli.output.console import command_name, make_console, print_json
from evoengine.cli.output.progress import ProgressDisplay
from evoengine.cli.output.run_summary import effort_lines, priors_text, standing_lines, times_text
from evoengine.cli.output.start_times import StartTimes
from evoengine.cli.verbs.leaderboard import row_document
from evoengine.cli.verbs.space import space_lines
from evoengine.device.tools.sanitizer import find_sanitizer
from evoengine.engine.event_file import open_event_log
from evoengine.engine.families import Family, overlaid
from evoengine.engine.options.search import SearchOptions, db_option
from evoengine.engine.prefetch import EarlyImports
from evoengine.engine.rows.queries import best_of
from evoengine.engine.rows.shortlist import SHORTLIST, shortlisted
from evoengine.engine.rows.space import starting_config
from evoengine.engine.search import require_kernel
from evoengine.engine.search_plan import SearchPlan, make_plan
from evoengine.engine.session import Session
from evoengine.leaderboard.records import Row, RowFilter
from evoengine.search.event_log import EventLog
from evoengine.search.events import Observer, Observers
from evoengine.search.settings import SearchResult, StopReason
from evoengine.search.warmstart.transfer import Transferred


def run_search(options: SearchOptions, output: OutputOptions, imports: EarlyImports | None = None) -> int:
    """Runs or resumes a search.

    Args:
        options: Options of the search.
        output: What is printed and logged.
        imports: Imports of the workers that have already begun; None if none have.

    Returns:
        The exit code.

    Raises:
        NothingFoundError: The search ended without a correct kernel.
        EvoEngineError: The search could not run.
    """
    notes = make_console(stderr=True)
    out = notes if output.json_output else make_console()
    plan = make_plan(options, imports.cluster if imports is not None else None)
    with Session(plan, imports) as session:
        before = session.evaluated
        session.begin()
        if not output.quiet:
            for line in _announcement(plan, session, before):
                out.print(line, markup=False)
        times = StartTimes()
        result = _run(session, notes, plan, output, times)
        if output.json_output:
            print_json(_document(plan, session, result) | {"start_seconds": times.seconds})
        else:
            _summarise(out, plan, session, result, times)
        if result.stop is StopReason.INTERRUPTED:
            return INTERRUPTED
        require_kernel(session, result)
    return OK


def _run(session: Session, notes: Console, plan: SearchPlan, output: OutputOptions, times: StartTimes) -> SearchResult:
    with ExitStack() as stack:
        observers: list[Observer] = [times]
        if not output.quiet:
            display = ProgressDisplay(notes, predicted=plan.device.predicted, verbose=output.verbose)
            observers.append(stack.enter_context(display))
        log = None if output.no_log else open_event_log(session.board, session.study, output.log)
        if log is not None:
            stack.callback(_close_log, log, notes)
            observers.append(log)
        return session.run(Observers(*observers))


def _close_log(log: EventLog, notes: Console) -> None:
    log.close()
    if log.fault:
        notes.print(f"warning: {log.fault}", markup=False)


def _announcement(plan: SearchPlan, session: Session, before: int) -> Iterator[str]:
    """The plan of the search: problem, device, settings, spaces and warm start."""
    request, device = plan.request, plan.device
    yield from _problem_lines(plan)
    yield f"device    {_where(plan)}, compiled for {device.arch} by NVRTC {device.nvrtc or 'of unknown version'}"
    yield f"search    {request.strategy}, seed {request.seed}, {request.candidates} candidates, {session.board.name}"
    yield f"study     {session.study.title}"
    yield from space_lines(plan.families)
    yield from (f"overlay   {line}" for line in overlaid(plan.families))
    if request.sanitizer and device.kind == "cuda" and find_sanitizer() is None:
        yield "finalists compute-sanitizer is not installed: new champions are checked on the emulator only"
    if plan.priors.starts and session.imported:
        yield f"imported  {len(session.imported)} configs are tried first; they are unproven until measured here"
    yield from _transfer_lines(session.transferred)
    if session.expected_count:
        yield f"forecast  up to {session.expected_count} configs that the latency model predicts fastest are tried next"
    if before >= request.candidates:
        yield f"the study is complete: {before} of {request.candidates} candidates are evaluated"


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
        kind = "PREDICTED" if device.predicted else "measured"
        noise = "" if plan.replay.noise.quiet else f", with {plan.replay.noise}"
        return f"replay of {plan.replay.file}: times {kind} on {plan.replay.landscape.device.name}{noise}"
    if device.predicted:
        why = f": {plan.choice.reason}" if plan.choice.reason else ""
        return f"times are PREDICTED on {device.name} (emulator{why})"
    labels = [place.label for place in plan.choice.bindings if place.label]
    number = f"{len(labels)} x " if len(labels) > 1 else ""
    return ", ".join([f"{number}{device.name}", *labels, f"driver {device.driver}"])


def _transfer_lines(entries: Sequence[Transferred]) -> Iterator[str]:
    """One line for each problem and device whose rows are tried first."""
    by_origin: dict[tuple[str, str, bool], list[Transferred]] = {}
    for entry in entries:
        by_origin.setdefault((entry.row.problem, entry.row.device, entry.row.predicted), []).append(entry)
    for number, ((problem, device, predicted), group) in enumerate(by_origin.items()):
        label = "transfer  " if number == 0 else " " * 10
        rows = ", ".join(f"row {entry.row.id}{' (made valid here)' if entry.repaired else ''}" for entry in group)
        kind = "predicted" if predicted else "measured"
        yield f"{label}{rows} of {problem}, {kind} on {device}, distance {group[0].distance:.1f}, tried first"


def _summarise(out: Console, plan: SearchPlan, session: Session, result: SearchResult, times: StartTimes) -> None:
    progress = result.progress
    out.print(
        f"{result.stop.value}: {progress.evaluated} of {progress.budget} candidates, {progress.new} new in "
        f"{progress.elapsed_s:.1f} s ({progress.rate:.2f}/s), {progress.duplicates} duplicates",
        markup=False,
    )
    counts = ", ".join(f"{count} {status.value}" for status, count in progress.counts.items())
    out.print(f"statuses  {counts or 'none'}", markup=False)
    if progress.new:
        out.print(f"priors    {priors_text(plan.priors, _tried_first(session))}", markup=False)
        for line in (*effort_lines(result), *times.lines):
            out.print(line, markup=False)
    if result.stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT):
        out.print("resume    run the same command again", markup=False)
    for line in standing_lines(result, predicted=plan.device.predicted, replayed=plan.replay is not None):
        out.print(line, markup=False)
    ranked = [*result.elites, *([] if result.champion is None else [result.champion])]
    found = best_of(session.board, ranked)
    if found is None:
        return
    best = found.row
    if plan.replay is not None:  # the champion may be another strategy's
        for row in session.board.rows(RowFilter(study_id=session.study.id, limit=1)):
            out.print(f"best      {row.median_us:.2f} us, found by this strategy with this seed", markup=False)
    spaces = {family.name: family.space for family in plan.families.taken}
    start = starting_config(spaces[best.family]) if best.family in spaces else None
    out.print(f"config    row {best.id}: {config_from_start(best.family, best.config, start)}", markup=False)
    shortlist = _shortlist(plan, session)
    if shortlist:
        text = f"{len(shortlist)} rows, {times_text(shortlist)}: the fastest kernel is likely among them"
        out.print(f"shortlist {text}", markup=False)
    db = db_option(plan.request.db)
    out.print(f"next      {command_name()} leaderboard{db}", markup=False, soft_wrap=True)
    if plan.replay is None:  # a replay has no sources
        out.print(f"          {command_name()} export {best.id} -o best.cu{db}", markup=False, soft_wrap=True)
    if shortlist:
        rows = f"--top {len(shortlist)}"
        out.print(f"          {command_name()} leaderboard --shortlist {rows}{db}", markup=False, soft_wrap=True)
        command = f"{command_name()} export {rows} --format torch -o best.py{db}"
        out.print(f"          {command}  # times them on your GPU, keeps the fastest", markup=False, soft_wrap=True)


def _shortlist(plan: SearchPlan, session: Session) -> list[Row]:
    """The predicted rows to measure first; empty where times are measured or replayed."""
    if not plan.device.predicted or plan.replay is not None:
        return []
    return shortlisted(session.board, session.board.rows(RowFilter(study_id=session.study.id)), SHORTLIST)


def _tried_first(session: Session) -> dict[str, int]:
    """Number of configs that each prior puts first."""
    found: dict[str, Sequence[object]] = {
        "starts": session.starts,
        "forecast": session.expected,
        "transfer": session.transferred,
    }
    return {name: len(configs) for name, configs in found.items()}


def _family_document(family: Family) -> dict[str, Any]:
    valid = family.valid
    return {
        "family": family.name,
        "valid_configs": valid.size,
        "valid_configs_error": valid.count.error,
        "combinations": valid.cartesian_size,
        "removed": {name: count.value for name, count in valid.removed.items()},
    }


def _transfer_document(entry: Transferred) -> dict[str, Any]:
    return {
        "row": entry.row.id,
        "problem": entry.row.problem,
        "device": entry.row.device,
        "predicted": entry.row.predicted,
        "distance": entry.distance,
        "repaired": entry.repaired,
        "family": entry.config.family,
        "config": entry.config.as_dict(),
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
        "study": session.study.title,
        "priors": list(plan.priors.on),
        "priors_off": list(plan.priors.off),
        "valid_configs": plan.valid.size,
        "families": [_family_document(family) for family in plan.families.taken],
        "left_out": {family.name: family.reason for family in plan.families.left_out},
        "transferred": [_transfer_document(entry) for entry in session.transferred],
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
        "accept_threshold": result.accept_threshold,
        "best": None if result.best is None else row_document(result.best),
        "champion": None if result.champion is None else row_document(result.champion),
        "difference": result.difference,
        "leader": None if result.leader is None else row_document(result.leader),
        "elites": [row_document(row) for row in result.elites],
        "shortlist": [row.id for row in _shortlist(plan, session)],
    }
