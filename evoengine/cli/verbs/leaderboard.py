"""``leaderboard`` and ``leaderboard show``: prints rankings and single rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.echo import echo_lines
from evoengine.cli.output.ranking_table import config_text, ranking_table
from evoengine.cli.verbs.profile_ncu import origin_of, profile_document
from evoengine.device.tools.bottleneck import diagnose, longest
from evoengine.documents.escaping import printable
from evoengine.engine.row_queries import find_rows, ranking_of
from evoengine.engine.verb_options import RowQuery
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.lineage import Kin, changes
from evoengine.leaderboard.records import Challenge, Record, Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Resources, Telemetry, Verdict

_MAX_ANCESTORS: Final = 12
"""Ancestors of a row that are shown."""


def list_rows(db: str, query: RowQuery, *, json_output: bool) -> None:
    """Prints rows as tables, one per ranking, or as a JSON array.

    Raises:
        StoreError: There is no leaderboard.
    """
    with Leaderboard(database_url(db), create=False) as board:
        rows = find_rows(board, query)
        counts = board.counts()
        studies = board.studies() if not rows else []
        held = dict.fromkeys(f"{study.scope.problem} on {study.scope.device}" for study in studies)
    if json_output:
        print_json([row_document(row) for row in rows])
        return
    console = make_console()
    if not rows:
        stored = ", ".join(f"{count} {status.value}" for status, count in counts.items()) or "no rows"
        with_energy = " with an energy, which a search on a GPU measures for its elites" if query.pareto else ""
        console.print(
            f"{db}: no row{with_energy} matches: it holds {stored}; searched: {', '.join(held) or 'nothing'}",
            markup=False,
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
        StoreError: There is no such leaderboard or row.
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
    for name, value in _shown_lines(record):
        table.add_row(name, printable(value))
    print_table(console, table)
    if record.evaluation.source:
        console.print("\nsource", style="bold")
        echo_lines(record.evaluation.source)  # not through rich: a wrapped line would not compile


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


def _shown_lines(record: Record) -> Iterable[tuple[str, str]]:
    """The lines that ``leaderboard show`` prints, as (name, text)."""
    row, evaluation = record.row, record.evaluation
    yield "id", str(row.id)
    rank = "-" if row.rank is None else str(row.rank)
    yield (
        "rank",
        f"{rank}{', champion' if row.champion else ', waits for its compute-sanitizer check' if row.pending else ''}",
    )
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
            yield "energy", f"{timing.energy_uj:.1f} uJ per call, of the whole GPU, over a loop of replays"
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
    """One line for the row and each of its nearest ancestors; none for a row without recorded origin."""
    by_id = {kin.id: kin for kin in lineage}
    for kin in lineage[:_MAX_ANCESTORS]:
        if kin.origin:
            time = "" if kin.median_us is None else f", {kin.median_us:.3f} us"
            changed = ", ".join(changes(by_id[kin.parents[0]], kin)) if kin.parents else ""
            yield f"row {kin.id}{time}: {kin.origin}{f': {changed}' if changed else ''}"
    if len(lineage) > _MAX_ANCESTORS:
        yield f"and {len(lineage) - _MAX_ANCESTORS} more ancestors: --json and 'report' list all"


def _telemetry_text(telemetry: Telemetry) -> str:
    """The state of the GPU before and after a measurement."""
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
    return f"{text}; throttled in the end" if telemetry.throttled else text


def _both(name: str, before: float | None, after: float | None, unit: str) -> str:
    """A value before and after, printed once if it is the same; empty if the driver does not report it."""
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
    duel = challenge.duel
    won = challenge.accepted or duel is None or duel.accepted
    if challenge.champion_id is None:
        verb = "is" if challenge.accepted and not challenge.pending else "leads as"
        text = f"row {challenge.evaluation_id} {verb} the first champion"
    else:
        verb = "replaced" if challenge.accepted and not challenge.pending else "beat" if won else "did not beat"
        text = f"row {challenge.evaluation_id} {verb} row {challenge.champion_id}"
    if challenge.pending:
        text += ", but its inspection is not complete"
    elif won and not challenge.accepted:
        text += ", but failed its inspection"
    if duel is not None:
        text += f": gain {duel.gain:.1%}, with 95 % confidence at least {duel.low_gain:.1%}"
        pairs = len(duel.challenger_us)
        text += f", {pairs} pair{'s' if pairs > 1 else ''}"
    return text
