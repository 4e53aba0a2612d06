"""Results of the Kernel Tuning Toolkit (KTT 2, JSON output) as landscapes.

A file has ``Metadata`` with device and unit of time, and ``Results``, each with a list of parameters, a status and, if
the kernel ran, its total duration.
"""

from __future__ import annotations

from pathlib import Path

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


class _Metadata(msgspec.Struct, frozen=True, rename="pascal"):
    device: str
    time_unit: str


class _Parameter(msgspec.Struct, frozen=True, rename="pascal"):
    name: str
    value: object


class _Result(msgspec.Struct, frozen=True, rename="pascal"):
    configuration: list[_Parameter]
    status: str
    kernel_name: str = ""
    total_duration: Amount = 0.0


class _Document(msgspec.Struct, frozen=True, rename="pascal"):
    metadata: _Metadata
    results: list[object]


def ktt_landscape(content: object, path: Path) -> Landscape:
    """Builds the landscape of KTT's results.

    Raises:
        LandscapeError: An entry is missing or invalid.
    """
    file = str(path)
    document = convert_document(content, _Document, file, LandscapeError)
    check_result_count(len(document.results), file)
    unit_us = TIME_UNITS_US.get(document.metadata.time_unit.lower())
    if unit_us is None:
        raise LandscapeError(file, "Metadata.TimeUnit", f"{document.metadata.time_unit[:40]!a} is not a unit of time")
    entries = [
        convert_document(one, _Result, file, LandscapeError, f"Results[{number}]")
        for number, one in enumerate(document.results)
    ]
    results = [_result(one, file, f"Results[{number}]", unit_us) for number, one in enumerate(entries)]
    kernel = entries[0].kernel_name if entries else ""
    return foreign_landscape(ForeignSource(file, "ktt", kernel, document.metadata.device), results)


def _result(entry: _Result, file: str, place: str, unit_us: float) -> ForeignResult:
    values = {parameter.name: parameter.value for parameter in entry.configuration}
    if len(values) < len(entry.configuration):
        raise LandscapeError(file, f"{place}.Configuration", "has a parameter twice")
    status = status_named(entry.status, file, f"{place}.Status")
    return ForeignResult(place, values, status, entry.total_duration * unit_us if status is Status.OK else None)
