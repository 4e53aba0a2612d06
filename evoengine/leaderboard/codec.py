"""Conversion between the shared records and columns of the leaderboard: text, numbers and JSON, never pickle.

Reading is strict: data of another type than the record's field raises :class:`MalformedDataError`, which the store
reports with the file's name. Fields that an older version did not write have their defaults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from evoengine.documents import Amount
from evoengine.documents.bounds import parse_json
from evoengine.errors import EvoEngineError
from evoengine.leaderboard.damage import MalformedDataError
from evoengine.model import (
    Config,
    Duel,
    Evaluation,
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
)

Columns = dict[str, Any]
"""Column name to value, as SQLAlchemy takes and returns them."""

_T = TypeVar("_T")

_PROBLEM: Final = frozenset(field.name for field in fields(Problem))
_RESOURCES: Final = tuple(field.name for field in fields(Resources))
_VERDICT: Final = {
    "passed": "parity_passed",
    "max_error": "max_error",
    "tolerance": "tolerance",
    "relative_l2": "relative_l2",
    "cases": "parity_cases",
    "worst_case": "worst_case",
    "reason": "parity_reason",
    "inputs_seed": "inputs_seed",
}
"""Column of each field of a verdict."""
_NUMBERS: Final = ("max_error", "tolerance", "relative_l2")
"""Fields of a verdict that may be NaN, which SQLite stores as NULL."""
_TIMING: Final = ("median_us", "low_us", "high_us", "predicted", "method", "baseline_us", "baseline", "energy_uj")
"""Fields of a timing that have a column each; the others are JSON."""
_TEXT_COLUMNS: Final = (
    *("family", "config_key", "config_json", "status", "reason", "source_hash", "code_hash", "template_hash"),
    *("duplicate_of", "driver", "nvrtc"),
)
_TIMING_TEXTS: Final = ("method", "baseline")
_COUNT_COLUMNS: Final = (*_RESOURCES, "parity_cases")
_POSITIVE_COLUMNS: Final = ("median_us", "baseline_us")
_NUMBER_COLUMNS: Final = ("low_us", "high_us", "energy_uj")


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Names the data that is being decoded in the error of the block.

    Args:
        what: Name of the data, for example ``row 7``.

    Raises:
        MalformedDataError: The data has another type or value than its record allows.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, EvoEngineError) as error:
        raise MalformedDataError(f"{what}: {error}") from error


def decoded(kind: type[_T], text: str, what: str) -> _T:
    """Decodes JSON.

    Args:
        kind: Type to return.
        text: The JSON.
        what: Name of the data for the error.

    Raises:
        MalformedDataError: The text is no JSON of this type.
    """
    with decoding(what):
        return msgspec.convert(parse_json(text, finite=False, any_text=True), kind)


def problem_json(problem: Problem) -> str:
    """Encodes all fields of a problem."""
    return json.dumps(_problem_fields(problem), sort_keys=True)


def _problem_fields(problem: Problem) -> dict[str, Any]:
    return asdict(problem) | {"dtype": problem.dtype.value}


def problem_from_json(text: str) -> Problem:
    """Inverse of :func:`problem_json`.

    Raises:
        MalformedDataError: The text describes no problem, or one with features that this version does not have.
    """
    with decoding("problem"):
        found = msgspec.convert(parse_json(text), dict[str, Any])
        if unknown := sorted(found.keys() - _PROBLEM):
            raise ValueError(f"unknown field {', '.join(unknown)}")
        return msgspec.convert(found, Problem)


def workload_json(workload: Workload | None) -> str | None:
    """Encodes name, problems and weights; NULL for none."""
    if workload is None:
        return None
    parts = [{"problem": _problem_fields(part.problem), "weight": part.weight} for part in workload.parts]
    return json.dumps({"name": workload.name, "parts": parts})


def workload_from_json(text: str | None) -> Workload | None:
    """Inverse of :func:`workload_json`."""
    return None if text is None else decoded(Workload, text, "workload")


def spaces_json(spaces: Sequence[tuple[str, str]]) -> str | None:
    """Encodes the texts of search-space files by family; NULL for none."""
    return json.dumps(dict(spaces), sort_keys=True) if spaces else None


def spaces_from_json(text: str | None) -> tuple[tuple[str, str], ...]:
    """Inverse of :func:`spaces_json`."""
    return () if text is None else tuple(decoded(dict[str, str], text, "search spaces").items())


@lru_cache(maxsize=1024)
def config_json(config: Config) -> str:
    """Encodes the values of a config, which its lease and its evaluation both store; the family has its own column."""
    return json.dumps(config.as_dict(), sort_keys=True)


def config_values(text: str) -> dict[str, Value]:
    """Inverse of :func:`config_json`."""
    return decoded(dict[str, Value], text, "config_json")


def stored_config(row: Mapping[Any, Any]) -> Config:
    """Returns the config of a row of evaluations or leases.

    Raises:
        ValueError: Its key is not that of the row.
    """
    config = Config.of(row["family"], config_values(row["config_json"]))
    if config.key != row["config_key"]:
        raise ValueError("config_json: does not match config_key")
    return config


def duel_json(duel: Duel) -> str:
    """Encodes the evidence of a challenge."""
    return json.dumps(asdict(duel))


def duel_from_json(text: str) -> Duel:
    """Inverse of :func:`duel_json`."""
    return decoded(Duel, text, "duel_json")


def notes_json(notes: Sequence[str]) -> str | None:
    """Encodes the notes on a row; NULL for none."""
    return json.dumps(list(notes)) if notes else None


def notes_from_json(text: str | None) -> tuple[str, ...]:
    """Inverse of :func:`notes_json`."""
    return () if text is None else decoded(tuple[str, ...], text, "notes_json")


def descent_json(descent: Provenance | None) -> str | None:
    """Encodes move and parents; NULL if the strategy does not report them."""
    return None if descent is None else json.dumps(asdict(descent))


def descent_from_json(text: str | None) -> Provenance | None:
    """Inverse of :func:`descent_json`."""
    return None if text is None else decoded(Provenance, text, "descent_json")


def evaluation_columns(evaluation: Evaluation) -> Columns:
    """Returns the columns of ``evo_evaluations`` that come from the evaluation itself."""
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
        **({} if evaluation.resources is None else vars(evaluation.resources)),
        **_verdict_columns(evaluation.verdict),
        **_timing_columns(evaluation.timing),
    }


def _verdict_columns(verdict: Verdict | None) -> Columns:
    if verdict is None:
        return {}
    columns = {column: getattr(verdict, name) for name, column in _VERDICT.items()}
    return columns | {name: float(columns[name]) for name in _NUMBERS} | {"parity_passed": bool(verdict.passed)}


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
        "telemetry_json": None if timing.telemetry is None else json.dumps(asdict(timing.telemetry)),
        "energy_uj": timing.energy_uj,
        "parts_json": json.dumps([asdict(part) for part in timing.parts]) if timing.parts else None,
    }


def check_columns(row: Mapping[Any, Any]) -> None:
    """Checks the columns of ``evo_evaluations``, in which SQLite stores values of any type.

    Raises:
        ValueError: A value has another type, or is out of range.
    """
    if type(row["id"]) is not int or row["id"] < 1:
        raise ValueError("id: is not a positive integer")
    if row["trial_number"] is not None and type(row["trial_number"]) is not int:
        raise ValueError("trial_number: is not an integer")
    has_time = row["median_us"] is not None
    if not has_time and row["status"] == Status.OK.value:
        raise ValueError("median_us: is missing, but the status is ok")
    for name in (*_TEXT_COLUMNS, *(_TIMING_TEXTS if has_time else ())):
        if type(row[name]) is not str:
            raise ValueError(f"{name}: is not a text")
    for name in _COUNT_COLUMNS:
        if row[name] is not None and (type(row[name]) is not int or row[name] < 0):
            raise ValueError(f"{name}: is not a count")
    for name in (*_POSITIVE_COLUMNS, *_NUMBER_COLUMNS):
        if row[name] is not None and not _is_amount(row[name], positive=name in _POSITIVE_COLUMNS):
            raise ValueError(f"{name}: is not a positive finite number")
    for name in _NUMBERS:  # SQLite stores NaN as NULL
        if row[name] is not None and type(row[name]) not in (int, float):
            raise ValueError(f"{name}: is not a number")
    check_time(row, "created_at")


def check_kind(row: Mapping[Any, Any], method: str, *, predicted: bool) -> None:
    """Checks that a time is of the kind of its study.

    Args:
        row: Columns of ``evo_evaluations``.
        method: Method of the study.
        predicted: Whether the study's times are predicted.

    Raises:
        ValueError: It is of another kind.
    """
    if row["median_us"] is None:
        return
    for name, expected in (("predicted", predicted), ("method", method)):
        if row[name] != expected:
            raise ValueError(f"{name}: is {row[name]!r}, but {expected!r} in its study")


def check_time(row: Mapping[Any, Any], name: str) -> None:
    """Checks that a column holds a date and time.

    Raises:
        TypeError: The column holds something else.
    """
    if not isinstance(row[name], datetime):
        raise TypeError(f"{name}: is not a date and time")


def _is_amount(value: object, *, positive: bool) -> bool:
    if type(value) is not int and type(value) is not float:
        return False
    return math.isfinite(value) and (value > 0 or not positive)


def evaluation_from_columns(row: Mapping[Any, Any], source: str = "") -> Evaluation:
    """Inverse of :func:`evaluation_columns`.

    Args:
        row: Columns of ``evo_evaluations``, ``id`` included.
        source: Source of the kernel.

    Raises:
        MalformedDataError: A column holds data of another type.
    """
    with decoding(f"row {row['id']}"):
        check_columns(row)
        return Evaluation(
            config=stored_config(row),
            status=Status(row["status"]),
            reason=row["reason"],
            source_hash=row["source_hash"],
            code_hash=row["code_hash"],
            template_hash=row["template_hash"],
            source=source,
            resources=_resources(row),
            verdict=_verdict(row),
            timing=_timing(row),
            stage_seconds=decoded(dict[str, Amount], row["stage_seconds_json"], "stage_seconds_json"),
            duplicate_of=row["duplicate_of"],
            notes=notes_from_json(row["notes_json"]),
        )


def _resources(row: Mapping[Any, Any]) -> Resources | None:
    if row["registers"] is None:
        return None
    return msgspec.convert({name: row[name] for name in _RESOURCES}, Resources)


def _verdict(row: Mapping[Any, Any]) -> Verdict | None:
    if row["parity_passed"] is None:
        return None
    found = {name: row[column] for name, column in _VERDICT.items()}
    missing = {name: float("nan") for name in _NUMBERS if found[name] is None}
    return msgspec.convert(found | missing, Verdict)


def _timing(row: Mapping[Any, Any]) -> Timing | None:
    if row["median_us"] is None:
        return None
    telemetry, parts = row["telemetry_json"], row["parts_json"]
    found = {
        **{name: row[name] for name in _TIMING},
        "samples_us": decoded(tuple[Amount, ...], row["samples_json"], "samples_json"),
        "telemetry": None if telemetry is None else decoded(Telemetry, telemetry, "telemetry_json"),
        "parts": () if parts is None else decoded(tuple[PartTime, ...], parts, "parts_json"),
    }
    return msgspec.convert(found, Timing)
