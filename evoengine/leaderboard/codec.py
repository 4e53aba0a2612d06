"""Between the shared records and columns of text and numbers; JSON only, never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from evoengine.model import (
    Config,
    DType,
    Duel,
    Evaluation,
    GpuReading,
    PartTime,
    Problem,
    Provenance,
    Resources,
    Status,
    Telemetry,
    Timing,
    Value,
    Verdict,
    Workload,
    WorkloadPart,
)

Columns = dict[str, Any]
"""Column name to value, as SQLAlchemy takes and gives them."""


def problem_json(problem: Problem) -> str:
    """All fields of a problem."""
    return json.dumps(asdict(problem) | {"dtype": problem.dtype.value}, sort_keys=True)


def problem_from_json(text: str) -> Problem:
    """Inverse of :func:`problem_json`; fields that an older version did not know have their defaults."""
    fields = json.loads(text)
    lengths = {name: tuple(fields.get(name, ())) for name in ("lengths_q", "lengths_kv")}
    return Problem(**(fields | lengths | {"dtype": DType(fields["dtype"])}))


def workload_json(workload: Workload | None) -> str | None:
    """Name, problems and weights; NULL for none."""
    if workload is None:
        return None
    parts = [{"problem": json.loads(problem_json(part.problem)), "weight": part.weight} for part in workload.parts]
    return json.dumps({"name": workload.name, "parts": parts})


def workload_from_json(text: str | None) -> Workload | None:
    """Inverse of :func:`workload_json`."""
    if text is None:
        return None
    fields = json.loads(text)
    parts = [WorkloadPart(problem_from_json(json.dumps(part["problem"])), part["weight"]) for part in fields["parts"]]
    return Workload(fields["name"], tuple(parts))


def spaces_json(spaces: Sequence[tuple[str, str]]) -> str | None:
    """Texts of search-space files by family; NULL for none."""
    return json.dumps(dict(spaces), sort_keys=True) if spaces else None


def spaces_from_json(text: str | None) -> tuple[tuple[str, str], ...]:
    """Inverse of :func:`spaces_json`."""
    return () if text is None else tuple(json.loads(text).items())


@lru_cache(maxsize=1024)
def config_json(config: Config) -> str:
    """The values of a config; its family has a column of its own. A claim and an evaluation need the same."""
    return json.dumps(config.as_dict(), sort_keys=True)


def config_values(text: str) -> dict[str, Value]:
    """Inverse of :func:`config_json`."""
    values: dict[str, Value] = json.loads(text)
    return values


def duel_json(duel: Duel) -> str:
    """Evidence of a challenge."""
    return json.dumps(asdict(duel))


def duel_from_json(text: str) -> Duel:
    """Inverse of :func:`duel_json`."""
    fields = json.loads(text)
    return Duel(
        challenger_us=tuple(fields["challenger_us"]),
        champion_us=tuple(fields["champion_us"]),
        gain=fields["gain"],
        low_gain=fields["low_gain"],
        threshold=fields["threshold"],
        accepted=fields["accepted"],
        telemetry=_telemetry(fields.get("telemetry")),  # version 2 recorded none
    )


def telemetry_json(telemetry: Telemetry | None) -> str | None:
    """What the driver said; NULL where nobody asked."""
    if telemetry is None:
        return None
    return json.dumps(vars(telemetry) | {"before": vars(telemetry.before), "after": vars(telemetry.after)})


def telemetry_from_json(text: str | None) -> Telemetry | None:
    """Inverse of :func:`telemetry_json`."""
    return None if text is None else _telemetry(json.loads(text))


def _telemetry(fields: Mapping[str, Any] | None) -> Telemetry | None:
    if fields is None:
        return None
    readings = {
        name: GpuReading(**(fields[name] | {"reasons": tuple(fields[name]["reasons"])})) for name in ("before", "after")
    }
    return Telemetry(**(dict(fields) | readings))


def notes_json(notes: Sequence[str]) -> str | None:
    """What is to be known about a row; NULL for nothing."""
    return json.dumps(list(notes)) if notes else None


def notes_from_json(text: str | None) -> tuple[str, ...]:
    """Inverse of :func:`notes_json`."""
    return () if text is None else tuple(json.loads(text))


def descent_json(descent: Provenance | None) -> str | None:
    """Move and parents; NULL where the strategy does not say."""
    return None if descent is None else json.dumps({"move": descent.move, "parents": descent.parents})


def descent_from_json(text: str | None) -> Provenance | None:
    """Inverse of :func:`descent_json`."""
    if text is None:
        return None
    fields = json.loads(text)
    return Provenance(fields["move"], tuple(fields["parents"]))


def evaluation_columns(evaluation: Evaluation) -> Columns:
    """Columns of ``evo_evaluations`` that come from the evaluation itself."""
    return {
        "config_key": evaluation.config.key,
        "family": evaluation.config.family,
        "config_json": config_json(evaluation.config),
        "status": evaluation.status.value,
        "reason": evaluation.reason,
        "source_hash": evaluation.source_hash,
        "code_hash": evaluation.code_hash,
        "template_hash": evaluation.template_hash,
        "duplicate_of": evaluation.duplicate_of,
        "notes_json": notes_json(evaluation.notes),
        "stage_seconds_json": json.dumps({name: float(s) for name, s in evaluation.stage_seconds.items()}),
        **_resource_columns(evaluation.resources),
        **_verdict_columns(evaluation.verdict),
        **_timing_columns(evaluation.timing),
    }


def _resource_columns(resources: Resources | None) -> Columns:
    return {} if resources is None else dict(vars(resources))


def _verdict_columns(verdict: Verdict | None) -> Columns:
    if verdict is None:
        return {}
    return {
        "parity_passed": bool(verdict.passed),
        "max_error": float(verdict.max_error),
        "tolerance": float(verdict.tolerance),
        "relative_l2": float(verdict.relative_l2),
        "parity_cases": verdict.cases,
        "worst_case": verdict.worst_case,
        "parity_reason": verdict.reason,
        "inputs_seed": verdict.inputs_seed,
    }


def _timing_columns(timing: Timing | None) -> Columns:
    if timing is None:
        return {}
    return {
        "median_us": float(timing.median_us),
        "low_us": float(timing.low_us),
        "high_us": float(timing.high_us),
        "predicted": bool(timing.predicted),
        "method": timing.method,
        "samples_json": json.dumps([float(sample) for sample in timing.samples_us]),
        "baseline_us": None if timing.baseline_us is None else float(timing.baseline_us),
        "baseline": timing.baseline,
        "telemetry_json": telemetry_json(timing.telemetry),
        "energy_uj": timing.energy_uj,
        "parts_json": json.dumps([asdict(part) for part in timing.parts]) if timing.parts else None,
    }


def evaluation_from_columns(row: Mapping[Any, Any], source: str = "") -> Evaluation:
    """Inverse of :func:`evaluation_columns`."""
    return Evaluation(
        config=Config.of(row["family"], config_values(row["config_json"])),
        status=Status(row["status"]),
        reason=row["reason"],
        source_hash=row["source_hash"],
        code_hash=row["code_hash"],
        template_hash=row["template_hash"],
        source=source,
        resources=_resources(row),
        verdict=_verdict(row),
        timing=_timing(row),
        stage_seconds=json.loads(row["stage_seconds_json"]),
        duplicate_of=row["duplicate_of"],
        notes=notes_from_json(row["notes_json"]),
    )


def _resources(row: Mapping[Any, Any]) -> Resources | None:
    if row["registers"] is None:
        return None
    return Resources(
        registers=row["registers"],
        spill_bytes=row["spill_bytes"],
        stack_bytes=row["stack_bytes"],
        static_smem_bytes=row["static_smem_bytes"],
        dynamic_smem_bytes=row["dynamic_smem_bytes"],
        threads=row["threads"],
    )


def _verdict(row: Mapping[Any, Any]) -> Verdict | None:
    if row["parity_passed"] is None:
        return None
    return Verdict(
        passed=row["parity_passed"],
        max_error=_number(row["max_error"]),
        tolerance=_number(row["tolerance"]),
        relative_l2=_number(row["relative_l2"]),
        cases=row["parity_cases"],
        worst_case=row["worst_case"],
        reason=row["parity_reason"],
        inputs_seed=row["inputs_seed"],
    )


def _number(value: float | None) -> float:
    """SQLite stores NaN as NULL."""
    return float("nan") if value is None else value


def _timing(row: Mapping[Any, Any]) -> Timing | None:
    if row["median_us"] is None:
        return None
    return Timing(
        median_us=row["median_us"],
        low_us=row["low_us"],
        high_us=row["high_us"],
        predicted=row["predicted"],
        method=row["method"],
        samples_us=tuple(json.loads(row["samples_json"])),
        baseline_us=row["baseline_us"],
        baseline=row["baseline"],
        telemetry=telemetry_from_json(row["telemetry_json"]),
        energy_uj=row["energy_uj"],
        parts=tuple(PartTime(**part) for part in json.loads(row["parts_json"] or "[]")),
    )
