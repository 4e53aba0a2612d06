"""Lists of facts about a study: summary, champion, environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evoengine.leaderboard.records import Record
from evoengine.model import Status
from evoengine.report.facts import StudyFacts


def summary_facts(facts: StudyFacts, counts: Mapping[Status, int]) -> Iterator[tuple[str, str]]:
    """Yields problem, device, search, champion and candidates of a study."""
    key = facts.study.key
    yield "problem" if key.workload is None else "workload", facts.subject
    kind = "emulated" if facts.study.scope.device_kind == "emulator" else key.device.kind
    yield "device", f"{key.device.name} ({kind}), {key.device.arch}"
    yield "times", f"{'PREDICTED' if facts.predicted else 'measured'} by {key.method}"
    yield "search", f"{key.strategy}, seed {key.seed}, families {key.family.replace(',', ', ')}"
    yield from _outcome(facts)
    ended = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    yield "candidates", f"{len(facts.rows)} stored: {ended}" if facts.rows else "none yet"
    if facts.rows:
        first, last = facts.rows[0].created_at, facts.rows[-1].created_at
        seconds = f"{(last - first).total_seconds():,.0f} s"
        yield "between", f"{first:%Y-%m-%d %H:%M:%S} and {last:%Y-%m-%d %H:%M:%S} UTC, {seconds}"


def _outcome(facts: StudyFacts) -> Iterator[tuple[str, str]]:
    """Yields the champion in one line."""
    if facts.champion is None or facts.champion.row.median_us is None:
        return
    row = facts.champion.row
    faster = "" if row.speedup is None else f", {row.speedup:.2f} times as fast as SDPA"
    yield "champion", f"row {row.id} of family {row.family}: {row.median_us:.3f} {facts.unit}{faster}"
    first = facts.elites[0] if facts.elites else row
    if not first.champion and first.median_us is not None:
        why = "its gain is too small, or was not confirmed by a fresh comparison"
        yield (
            "first rank",
            f"row {first.id}: {first.median_us:.3f} {facts.unit}; it did not replace the champion: {why}",
        )


def champion_facts(record: Record, facts: StudyFacts) -> Iterator[tuple[str, str]]:
    """Yields times, parity, resources and hashes of the champion."""
    row, evaluation = record.row, record.evaluation
    timing, verdict, resources = evaluation.timing, evaluation.verdict, evaluation.resources
    yield "row", f"{row.id}, of study {row.study_id}" + (", this one" if row.study_id == facts.study.id else "")
    if timing is not None:
        interval = "" if row.predicted else f", 95 % interval {timing.low_us:.3f} to {timing.high_us:.3f}"
        yield "time per call", f"{timing.median_us:.3f} {facts.unit}{interval}"
        if timing.baseline_us is not None:
            yield (
                "against SDPA",
                f"{timing.baseline} took {timing.baseline_us:.3f} µs: {timing.speedup:.2f} times as long",
            )
        for part in timing.parts:
            yield f"on {part.problem}", f"{part.median_us:.3f} {facts.unit}, {part.share:.0%} of the calls"
    if row.energy_uj is not None:
        yield "energy per call", f"{row.energy_uj:.1f} µJ"
    yield "family", row.family
    if verdict is not None:
        outcome = "passed" if verdict.passed else "FAILED"
        bound = f"max error {verdict.max_error:.2e} within {verdict.tolerance:.2e}"
        yield "parity", f"{outcome} in {verdict.cases} cases, {bound}; closest to its bound: {verdict.worst_case}"
    if resources is not None:
        memory = f"{resources.spill_bytes} bytes spilled, {resources.smem_bytes} bytes shared memory"
        yield "resources", f"{resources.registers} registers, {memory}, {resources.threads} threads"
    for note in evaluation.notes:
        yield "note", note
    hashes = {"template": evaluation.template_hash, "source": evaluation.source_hash, "code": evaluation.code_hash}
    yield "hashes", ", ".join(f"{name} {digest}" for name, digest in hashes.items() if digest) or "none"


def environment_facts(facts: StudyFacts) -> Iterator[tuple[str, str]]:
    """Yields device, versions, clocks and hashes."""
    key, champion = facts.study.key, facts.champion
    yield "device", key.device.name
    yield "compiled for", key.device.arch
    if champion is not None:
        yield "driver", champion.driver or "none (no GPU)"
        yield "NVRTC", champion.nvrtc or "unknown"
        telemetry = champion.evaluation.timing.telemetry if champion.evaluation.timing else None
        if telemetry is not None:
            reading = telemetry.after
            seen: dict[str, tuple[float | None, str]] = {"SM clock": (reading.sm_mhz, "MHz")}
            seen["memory clock"] = (reading.memory_mhz, "MHz")
            seen |= {"temperature": (reading.temperature_c, "°C"), "power": (reading.power_w, "W")}
            yield from ((name, f"{value} {unit}") for name, (value, unit) in seen.items() if value is not None)
            yield "throttled", "yes" if telemetry.throttled else "no"
    yield "space", f"{key.space_key[:16] or 'unknown'} (hash of search spaces and templates)"
    yield "study", facts.study.title
