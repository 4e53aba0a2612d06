"""T4 results of other tuners as landscapes; :mod:`evoengine.interop.t4` writes the format.

Dialects differ in the names of the times (``compilation`` or ``compilation_time``), in where the unit of time is stated
(with the measurement or in the metadata), and in the measurement of a failed config: none, or the name of an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from evoengine.documents import Amount, convert_document
from evoengine.errors import LandscapeError
from evoengine.interop.foreign_results import (
    TIME_UNITS_US,
    ForeignResult,
    ForeignSource,
    check_result_count,
    foreign_landscape,
    status_named,
)
from evoengine.landscape.landscape import Landscape
from evoengine.model import Status

_TIME_NAMES: Final = ("time", "duration", "runtime", "kernel_time")
"""Names of objectives that are times even if no unit is stated."""
_STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "compile": ("compilation", "compilation_time"),
    "parity": ("validation", "validation_time"),
    "bench": ("benchmark", "benchmark_time"),
}


class _Metadata(msgspec.Struct, frozen=True):
    timeunit: str = "milliseconds"
    device: str = "not stated"
    kernel: str | None = None
    family: str | None = None
    predicted: bool = False


class _Measurement(msgspec.Struct, frozen=True):
    name: str
    value: object = None
    unit: str = ""


class _Result(msgspec.Struct, frozen=True):
    configuration: dict[str, object]
    invalidity: str
    times: dict[str, object] = msgspec.field(default_factory=dict)
    measurements: list[_Measurement] = msgspec.field(default_factory=list)
    objectives: list[str] = msgspec.field(default_factory=lambda: ["time"])


class _Document(msgspec.Struct, frozen=True):
    results: list[object]
    metadata: dict[str, object] = msgspec.field(default_factory=dict)


def t4_landscape(content: object, path: Path) -> Landscape:
    """Builds the landscape of T4 results; the file's name names the kernel, unless the metadata do.

    Raises:
        LandscapeError: An entry is missing or invalid, or the objective is not a time.
    """
    file = str(path)
    document = convert_document(content, _Document, file, LandscapeError)
    check_result_count(len(document.results), file)
    metadata = convert_document(document.metadata, _Metadata, file, LandscapeError, "metadata")
    unit_us = _unit_us(metadata.timeunit, file, "metadata.timeunit")
    results = [_result(one, file, f"results[{number}]", unit_us) for number, one in enumerate(document.results)]
    kernel = metadata.kernel or metadata.family or path.name.split(".")[0]
    return foreign_landscape(ForeignSource(file, "t4", kernel, metadata.device, metadata.predicted), results)


def _result(content: object, file: str, place: str, unit_us: float) -> ForeignResult:
    result = convert_document(content, _Result, file, LandscapeError, place)
    status = status_named(result.invalidity, file, f"{place}.invalidity")
    runtimes: Sequence[float] = convert_document(
        result.times.get("runtimes") or [], list[Amount], file, LandscapeError, f"{place}.times.runtimes"
    )
    samples = [time * unit_us for time in runtimes]
    return ForeignResult(
        place=place,
        values=result.configuration,
        status=status,
        median_us=_median_us(result, file, place, samples, unit_us) if status is Status.OK else None,
        samples_us=samples,
        seconds=_seconds(result.times, file, place, unit_us),
    )


def _median_us(result: _Result, file: str, place: str, samples: Sequence[float], unit_us: float) -> float | None:
    """Returns the time of a correct config: its measurement, or else the median of its single times."""
    objective = result.objectives[0] if result.objectives else "time"
    for number, one in enumerate(result.measurements):
        if one.name == objective:
            here = f"{place}.measurements[{number}]"
            if not one.unit and objective.lower() not in _TIME_NAMES:
                raise LandscapeError(file, here, "the objective has no unit of time: only times can be searched")
            value: float = convert_document(one.value, Amount, file, LandscapeError, f"{here}.value")
            return value * (_unit_us(one.unit, file, f"{here}.unit") if one.unit else unit_us)
    if objective.lower() not in _TIME_NAMES:
        raise LandscapeError(file, f"{place}.measurements", "lacks the objective")
    return median(samples) if samples else None


def _seconds(times: Mapping[str, Any], file: str, place: str, unit_us: float) -> dict[str, float]:
    seconds = {}
    for stage, names in _STAGES.items():
        for name in names:
            if times.get(name):
                amount: float = convert_document(times[name], Amount, file, LandscapeError, f"{place}.times.{name}")
                seconds[stage] = amount * unit_us / 1e6
    return seconds


def _unit_us(text: str, file: str, place: str) -> float:
    unit = TIME_UNITS_US.get(text.strip().lower())
    if unit is None:
        raise LandscapeError(file, place, f"is {text[:40]!a}, not a unit of time: only times can be searched")
    return unit
