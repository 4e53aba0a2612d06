"""One row of the leaderboard as lines that fit on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from evoengine.cli.output.config_text import config_from_start
from evoengine.device.tools.bottleneck import diagnose, longest
from evoengine.engine.rows.space import StartingConfig
from evoengine.leaderboard.lineage import Kin, changes
from evoengine.leaderboard.records import Challenge, Record, Row
from evoengine.model import HardwareProfile, Resources, Telemetry, Timing, Verdict

_MOST_ANCESTORS: Final = 1
_MOST_CHANGES: Final = 4
"""Changed tunables that are shown of one ancestor."""
_MOST_CHALLENGES: Final = 2
_MOST_NOTES: Final = 1


def row_lines(record: Record, start: StartingConfig | None) -> Iterator[tuple[str, str]]:
    """Yields the lines as name and text: verdict, resources, times, config, lineage.

    Args:
        record: Row.
        start: Starting config of its family; None if it is unknown.
    """
    row, evaluation = record.row, record.evaluation
    yield "row", f"{row.id}: {_outcome(row)}"
    yield "problem", row.problem
    software = f"driver {record.driver or 'none'}, NVRTC {record.nvrtc}"
    yield "device", f"{row.device} ({row.device_kind}), {row.arch}, {software}"
    if evaluation.verdict is not None:
        yield "parity", _verdict_text(evaluation.verdict)
    if evaluation.resources is not None:
        yield "resources", _resources_text(evaluation.resources)
    if evaluation.timing is not None:
        yield from _timing_lines(evaluation.timing)
    if record.profile is not None:
        yield from (("counters", sentence) for sentence in diagnose(longest(record.profile.launches)).sentences)
        yield "counted", origin_of(record.profile)
    yield "config", config_from_start(row.family, row.config, start)
    for note in evaluation.notes[:_MOST_NOTES]:
        yield "note", note
    for challenge in record.challenges[-_MOST_CHALLENGES:]:
        yield "challenge", _challenge_text(challenge)
    shown = _shown_kin(record.lineage)
    yield from (("lineage", text) for text in _lineage_texts(shown, record.lineage))
    yield "hashes", f"template {evaluation.template_hash}, source {evaluation.source_hash}, code {evaluation.code_hash}"
    stored = row.created_at.isoformat(sep=" ", timespec="seconds")
    yield "study", f"{record.study.id}: {record.study.key.strategy}, seed {record.study.key.seed}; stored {stored} UTC"
    yield "more", _more_text(record, len(record.lineage) - len(shown))


def _outcome(row: Row) -> str:
    """Status, rank and role of a row."""
    if row.rank is None:
        return row.status.value if not row.reason else f"{row.status.value}: {row.reason}"
    role = ", champion" if row.champion else ", waits for its compute-sanitizer check" if row.pending else ""
    return f"{row.status.value}, rank {row.rank}{role}"


def _more_text(record: Record, ancestors: int) -> str:
    """Names what is not shown, and the options that show it."""
    hidden = {
        "ancestors": ancestors,
        "challenges": len(record.challenges) - _MOST_CHALLENGES,
        "notes": len(record.evaluation.notes) - _MOST_NOTES,
    }
    others = [f"{count} more {name}" for name, count in hidden.items() if count > 0]
    source = "--source prints the kernel; " if record.evaluation.source else ""
    return f"{source}--json has all values, samples and stage times{''.join(f', {text}' for text in others)}"


def _timing_lines(timing: Timing) -> Iterator[tuple[str, str]]:
    kind = "predicted" if timing.predicted else "measured"
    interval = "" if timing.low_us == timing.high_us else f", {timing.low_us:.3f} to {timing.high_us:.3f}"
    rival = ""
    if timing.baseline_us is not None:
        rival = f"; {timing.speedup:.2f}x {timing.baseline} ({timing.baseline_us:.3f} us)"
    yield "time", f"{timing.median_us:.3f} us {kind} by {timing.method}{interval}{rival}"
    for part in timing.parts:
        rival = "" if part.baseline_us is None else f", {part.baseline} {part.baseline_us:.3f} us"
        yield "part", f"{part.share:.1%} {part.problem}: {part.median_us:.3f} us{rival}"
    if timing.energy_uj is not None:
        yield "energy", f"{timing.energy_uj:.1f} uJ per call, of the whole GPU, over a loop of replays"
    if timing.telemetry is not None:
        yield "GPU", _telemetry_text(timing.telemetry)


def _shown_kin(lineage: Sequence[Kin]) -> tuple[Kin, ...]:
    """The row and its nearest ancestors with a recorded origin."""
    return tuple(islice((kin for kin in lineage if kin.origin), 1 + _MOST_ANCESTORS))


def _lineage_texts(shown: Sequence[Kin], lineage: Sequence[Kin]) -> Iterator[str]:
    by_id = {kin.id: kin for kin in lineage}
    for kin in shown:
        time = "" if kin.median_us is None else f", {kin.median_us:.3f} us"
        changed = list(changes(by_id[kin.parents[0]], kin)) if kin.parents else []
        if len(changed) > _MOST_CHANGES:
            changed[_MOST_CHANGES:] = [f"{len(changed) - _MOST_CHANGES} more"]
        yield f"row {kin.id}{time}: {kin.origin}{': ' * bool(changed)}{', '.join(changed)}"


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
    text = f"{outcome} in {verdict.cases} cases: max error {verdict.max_error:.3e}, bound {verdict.tolerance:.3e}"
    inputs = "" if verdict.inputs_seed is None else f"; inputs seed {verdict.inputs_seed}"
    return f"{text}; closest to its bound: {verdict.worst_case}{inputs}"


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
        text += f": gain {duel.gain:.1%}"
        pairs = len(duel.challenger_us)
        if pairs > 1 or duel.gain != duel.low_gain:  # two predictions are compared as they are
            text += f", with 95 % confidence at least {duel.low_gain:.1%}, {pairs} pair{'s' if pairs > 1 else ''}"
    return text


def origin_of(profile: HardwareProfile) -> str:
    """Tool, GPU, time and code of a profile."""
    return f"{profile.tool} on {profile.gpu}, {profile.counted_at:%Y-%m-%d %H:%M} UTC, code {profile.code_hash}"
