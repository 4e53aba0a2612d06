"""Listing and showing rows of the leaderboard."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import typer
from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.ranking_table import config_text, ranking_table
from evoengine.cli.verbs.profile_ncu import origin_of, profile_document
from evoengine.device.tools.bottleneck import diagnose, longest
from evoengine.errors import UsageError
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.lineage import Kin, changes
from evoengine.leaderboard.pareto import pareto_front
from evoengine.leaderboard.records import Challenge, Record, Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import NAMED_PROBLEMS, Resources, Status, Telemetry, Verdict

_KINDS = ("cuda", "emulator", "replay")
_MOST_KIN = 12
"""Links of a lineage that are shown."""


@dataclass(frozen=True)
class RowQuery:
    """Which rows a user asks for."""

    problem: str | None = None
    """A name (``mission``), a shape (``1x8x512x64``, any dtype and mask) or a full key."""
    device: str | None = None
    """A kind (``cuda``) or part of a device's name."""
    status: str = "ok"
    top: int | None = None
    """Rows per ranking."""
    pareto: bool = False
    """Of each ranking only the rows that no other beats in both time and energy."""


def find_rows(board: Leaderboard, query: RowQuery) -> list[Row]:
    """The rows that a query names, ranking by ranking, best first.

    Raises:
        UsageError: there is no such status.
    """
    kind = query.device if query.device in _KINDS else None
    limit = None if query.pareto else query.top
    rows = board.rows(RowFilter(device_kind=kind, statuses=_statuses(query.status), limit=limit))
    found = [row for row in rows if _is_of_problem(row, query.problem) and _is_of_device(row, query.device)]
    if not query.pareto:
        return found
    rankings = groupby(found, key=ranking_of)
    return [row for _, ranking in rankings for row in pareto_front(tuple(ranking))[: query.top]]


def ranking_of(row: Row) -> tuple[object, ...]:
    """What rows of one ranking share."""
    return row.problem, row.device, row.arch, row.predicted, row.method


def _statuses(text: str) -> tuple[Status, ...]:
    if text == "all":
        return ()
    try:
        return (Status(text.lower()),)
    except ValueError:
        known = ", ".join(status.value for status in Status)
        raise UsageError(f"unknown status '{text}': choose all, or one of {known}") from None


def _is_of_problem(row: Row, wanted: str | None) -> bool:
    if wanted is None:
        return True
    shape = NAMED_PROBLEMS[wanted].shape_key if wanted in NAMED_PROBLEMS else wanted
    return row.problem == shape or row.problem.startswith(f"{shape}-")


def _is_of_device(row: Row, wanted: str | None) -> bool:
    return wanted is None or row.device_kind == wanted or wanted.lower() in row.device.lower()


def list_rows(db: str, query: RowQuery, *, json_output: bool) -> None:
    """Prints rows as tables, one per ranking, or as a JSON array.

    Raises:
        StoreError: there is no leaderboard there.
    """
    with Leaderboard(database_url(db), create=False) as board:
        rows = find_rows(board, query)
        counts = board.counts()
        held = dict.fromkeys(f"{study.scope.problem} on {study.scope.device}" for study in board.studies())
    if json_output:
        print_json([row_document(row) for row in rows])
        return
    console = make_console()
    if not rows:
        stored = ", ".join(f"{count} {status.value}" for status, count in counts.items()) or "it is empty"
        with_energy = " with an energy, which is measured of the elites of a search on a GPU" if query.pareto else ""
        console.print(
            f"no such rows{with_energy} in {db}: {stored}; searched: {', '.join(held) or 'nothing'}", markup=False
        )
        return
    for _, ranking in groupby(rows, key=ranking_of):
        print_table(console, ranking_table(tuple(ranking), console.width))


def row_document(row: Row) -> dict[str, Any]:
    """One row as a JSON object."""
    return {
        "id": row.id,
        "rank": row.rank,
        "status": row.status.value,
        "median_us": row.median_us,
        "low_us": row.low_us,
        "high_us": row.high_us,
        "predicted": row.predicted,
        "method": row.method,
        "device": row.device,
        "device_kind": row.device_kind,
        "arch": row.arch,
        "problem": row.problem,
        "family": row.family,
        "config": dict(row.config),
        "registers": row.registers,
        "spill_bytes": row.spill_bytes,
        "smem_bytes": row.smem_bytes,
        "max_error": row.max_error,
        "speedup": row.speedup,
        "champion": row.champion,
        "pending": row.pending,
        "energy_uj": row.energy_uj,
        "reason": row.reason,
        "code_hash": row.code_hash,
        "study_id": row.study_id,
        "created_at": row.created_at.isoformat(timespec="seconds") + "Z",
    }


def show_row(db: str, row_id: int, *, json_output: bool) -> None:
    """Prints everything about one row.

    Raises:
        StoreError: there is no such leaderboard or no such row.
    """
    with Leaderboard(database_url(db), create=False) as board:
        record = board.get(row_id)
    if json_output:
        print_json(record_document(record))
        return
    console = make_console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(record):
        table.add_row(name, value)
    print_table(console, table)
    if record.evaluation.source:
        console.print("\nsource", style="bold")
        typer.echo(record.evaluation.source)  # as it is: a wrapped line would not compile


def record_document(record: Record) -> dict[str, Any]:
    """Everything about one row as a JSON object."""
    evaluation = record.evaluation
    return {
        **row_document(record.row),
        "strategy": record.study.key.strategy,
        "seed": record.study.key.seed,
        "trial_number": record.trial_number,
        "driver": record.driver,
        "nvrtc": record.nvrtc,
        "template_hash": evaluation.template_hash,
        "source_hash": evaluation.source_hash,
        "duplicate_of": evaluation.duplicate_of,
        "resources": None if evaluation.resources is None else dataclasses.asdict(evaluation.resources),
        "verdict": None if evaluation.verdict is None else dataclasses.asdict(evaluation.verdict),
        "timing": None if evaluation.timing is None else dataclasses.asdict(evaluation.timing),
        "stage_seconds": dict(evaluation.stage_seconds),
        "notes": list(evaluation.notes),
        "challenges": [_challenge_document(challenge) for challenge in record.challenges],
        "lineage": [_kin_document(kin) for kin in record.lineage if kin.descent is not None],
        "hardware": None if record.profile is None else profile_document(record.profile),
        "source": evaluation.source,
    }


def _challenge_document(challenge: Challenge) -> dict[str, Any]:
    return {
        "evaluation_id": challenge.evaluation_id,
        "champion_id": challenge.champion_id,
        "accepted": challenge.accepted,
        "pending": challenge.pending,
        "duel": None if challenge.duel is None else dataclasses.asdict(challenge.duel),
        "created_at": challenge.created_at.isoformat(timespec="seconds") + "Z",
    }


def _kin_document(kin: Kin) -> dict[str, Any]:
    return {
        "id": kin.id,
        "generation": kin.generation,
        "median_us": kin.median_us,
        "move": None if kin.descent is None else kin.descent.move,
        "parents": list(kin.parents),
    }


def _facts(record: Record) -> Iterable[tuple[str, str]]:
    row, evaluation = record.row, record.evaluation
    yield "id", str(row.id)
    rank = "-" if row.rank is None else str(row.rank)
    yield "rank", f"{rank}{', champion' if row.champion else ', waits for compute-sanitizer' if row.pending else ''}"
    yield "status", row.status.value if not row.reason else f"{row.status.value}: {row.reason}"
    yield "problem", row.problem
    yield (
        "device",
        f"{row.device} ({row.device_kind}), {row.arch}, driver {record.driver or 'none'}, NVRTC {record.nvrtc}",
    )
    yield "config", f"{row.family}: {config_text(row.config.items())}"
    timing, verdict, resources = evaluation.timing, evaluation.verdict, evaluation.resources
    if timing is not None:
        kind = "predicted" if timing.predicted else "measured"
        yield (
            "time",
            f"{timing.median_us:.3f} us {kind} by {timing.method}, {timing.low_us:.3f} to {timing.high_us:.3f}",
        )
        if timing.baseline_us is not None:
            yield "baseline", f"{timing.baseline} {timing.baseline_us:.3f} us, speed-up {timing.speedup:.2f}x"
        for part in timing.parts:
            rival = "" if part.baseline_us is None else f", {part.baseline} {part.baseline_us:.3f} us"
            yield "part", f"{part.share:.1%} {part.problem}: {part.median_us:.3f} us{rival}"
        if timing.energy_uj is not None:
            yield "energy", f"{timing.energy_uj:.1f} uJ a call of the whole GPU, over a loop of replays"
        if timing.telemetry is not None:
            yield "GPU", _telemetry_text(timing.telemetry)
    if verdict is not None:
        yield "parity", _verdict_text(verdict)
    if resources is not None:
        yield "resources", _resources_text(resources)
    if record.profile is not None:
        yield from (("counters", sentence) for sentence in diagnose(longest(record.profile.launches)).sentences)
        yield "counted", origin_of(record.profile)
    for note in evaluation.notes:
        yield "note", note
    yield "hashes", f"template {evaluation.template_hash}, source {evaluation.source_hash}, code {evaluation.code_hash}"
    yield "stages", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in evaluation.stage_seconds.items()) or "-"
    yield "study", f"{record.study.id}: {record.study.key.strategy}, seed {record.study.key.seed}"
    yield "stored", row.created_at.isoformat(sep=" ", timespec="seconds") + " UTC"
    for challenge in record.challenges:
        yield "challenge", _challenge_text(challenge)
    yield from (("lineage", text) for text in _lineage_texts(record.lineage))


def _lineage_texts(lineage: Sequence[Kin]) -> Iterable[str]:
    """The row and its nearest ancestors, one line each; nothing where the search did not say."""
    by_id = {kin.id: kin for kin in lineage}
    for kin in lineage[:_MOST_KIN]:
        if kin.origin:
            time = "" if kin.median_us is None else f", {kin.median_us:.3f} us"
            changed = ", ".join(changes(by_id[kin.parents[0]], kin)) if kin.parents else ""
            yield f"row {kin.id}{time}: {kin.origin}{f': {changed}' if changed else ''}"
    if len(lineage) > _MOST_KIN:
        yield f"and {len(lineage) - _MOST_KIN} more ancestors: --json and 'report' have them all"


def _telemetry_text(telemetry: Telemetry) -> str:
    """What the driver said around a measurement."""
    if telemetry.missing:
        return f"no telemetry: {telemetry.missing}"
    before, after = telemetry.before, telemetry.after
    facts = (
        _both("SM", before.sm_mhz, after.sm_mhz, " MHz"),
        _both("memory", before.memory_mhz, after.memory_mhz, " MHz"),
        _both("", before.temperature_c, after.temperature_c, " C"),
        _both("", before.power_w, after.power_w, " W"),
    )
    reasons = sorted({*before.reasons, *after.reasons})
    limits = f"clock limits {', '.join(reasons)}" if reasons else "no clock limit"
    text = ", ".join(filter(None, (*facts, limits, telemetry.gpu)))
    if telemetry.discarded:
        text += f"; {telemetry.discarded} samples discarded while throttled"
    return f"{text}; throttled all the same" if telemetry.throttled else text


def _both(name: str, before: float | None, after: float | None, unit: str) -> str:
    """A value before and after, once where it stayed the same; empty where the driver does not say."""
    texts = [f"{value:.0f}" for value in (before, after) if value is not None]
    return f"{name} {' to '.join(dict.fromkeys(texts))}{unit}".strip() if texts else ""


def _verdict_text(verdict: Verdict) -> str:
    outcome = "passed" if verdict.passed else "FAILED"
    text = (
        f"{outcome} in {verdict.cases} cases: max error {verdict.max_error:.3e}, relative L2 {verdict.relative_l2:.3e}"
    )
    inputs = "" if verdict.inputs_seed is None else f"; inputs seed {verdict.inputs_seed}"
    return f"{text}, bound {verdict.tolerance:.3e}; closest to its bound: {verdict.worst_case}{inputs}"


def _resources_text(resources: Resources) -> str:
    memory = f"{resources.stack_bytes} bytes stack, {resources.smem_bytes} bytes shared memory"
    return (
        f"{resources.registers} registers, {resources.spill_bytes} bytes spilled, {memory}, {resources.threads} threads"
    )


def _challenge_text(challenge: Challenge) -> str:
    rival = "the vacant crown" if challenge.champion_id is None else f"row {challenge.champion_id}"
    duel = challenge.duel
    won = challenge.accepted or duel is None or duel.accepted
    verb = "took over from" if challenge.accepted and not challenge.pending else "beat" if won else "did not beat"
    text = f"row {challenge.evaluation_id} {verb} {rival}"
    if challenge.pending:
        text += ", but its inspection was not completed"
    elif won and not challenge.accepted:
        text += ", but did not pass its inspection"
    if duel is not None:
        text += f": gain {duel.gain:.1%}, with 95 % confidence at least {duel.low_gain:.1%}"
        pairs = len(duel.challenger_us)
        text += f", {pairs} pair{'s' if pairs > 1 else ''}"
    return text
