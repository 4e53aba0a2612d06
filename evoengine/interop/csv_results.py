"""Tables of other tuners (CSV) as landscapes: one config a line, one column per tunable, one with the time.

The column of times is ``time`` (milliseconds), or states its unit: ``time_us``, ``duration (ms)``. A column ``status``
states which configs failed; without it, a config without a finite time failed. All other columns are tunables.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from evoengine.documents.bounds import MAX_INT, BoundsError, decode_text
from evoengine.documents.plain_numbers import parse_number
from evoengine.errors import LandscapeError
from evoengine.interop.foreign_results import (
    MAX_TUNABLES,
    TIME_UNITS_US,
    ForeignResult,
    ForeignSource,
    check_result_count,
    foreign_landscape,
    is_status,
    status_named,
)
from evoengine.landscape.landscape import Landscape
from evoengine.model import Status

_TIME: Final = re.compile(r"(?:time|duration|runtime|median|computation duration)[ _]?\(?([a-z]*)\)?", re.IGNORECASE)
_STATUS: Final = ("status", "invalidity", "validity", "error")
_MOST_COLUMNS: Final = MAX_TUNABLES + 2
"""Columns of tunables, of times and of statuses."""
_FAILED_TIME: Final = 1e20
"""Times from here on are written for failures."""
_LONGEST_NUMBER: Final = 40
_LONG_WHOLE: Final = re.compile(rf"[+-]?[0-9]{{16,{_LONGEST_NUMBER}}}", re.ASCII)
"""A whole number that a double may not hold exactly."""


def csv_landscape(content: bytes, path: Path) -> Landscape:
    """Builds the landscape of a table; the file's name names the kernel.

    Raises:
        LandscapeError: The content is not CSV with a header, has no column of times or two, or has an invalid cell.
    """
    file = str(path)
    rows = _rows(content, file)
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header) or "" in header:
        raise LandscapeError(file, "line 1", "has a column without a name, or two of one name")
    times = {name: unit for name in header if (unit := _unit_us(name)) is not None}
    if len(times) != 1:
        reason = f"has {len(times)} columns of times: give one, such as time_us or time_ms"
        raise LandscapeError(file, "line 1", reason)
    statuses = [name for name in header if name.lower() in _STATUS]
    if len(statuses) > 1:
        raise LandscapeError(file, "line 1", "has several columns of statuses")
    results = [
        _result(dict(zip(header, row, strict=True)), file, f"line {number}", times, statuses)
        for number, row in enumerate(rows[1:], start=2)
        if row
    ]
    return foreign_landscape(ForeignSource(file, "csv", path.name.split(".")[0], "not stated"), results)


def _rows(content: bytes, file: str) -> Sequence[list[str]]:
    try:
        text = decode_text(content)
        first = text.split("\n", 1)[0]
        rows, delimiter = [], ";" if ";" in first else ","
        if first.count(delimiter) >= _MOST_COLUMNS:
            raise LandscapeError(file, "line 1", f"has more than {_MOST_COLUMNS:,} columns")
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            rows.append(row)
            if row and len(row) != len(rows[0]):
                raise LandscapeError(file, f"line {len(rows)}", f"has {len(row)} cells, not {len(rows[0])}")
            check_result_count(len(rows) - 1, file)
    except (BoundsError, csv.Error) as error:
        raise LandscapeError(file, "", f"is neither JSON nor CSV: {error}") from None
    if len(rows) < 2:
        raise LandscapeError(file, "", "has no line below a header")
    return rows


def _unit_us(name: str) -> float | None:
    """Returns the unit of a column of times, None for another column."""
    found = _TIME.fullmatch(name)
    return None if found is None else TIME_UNITS_US.get(found[1].lower() or "ms")


def _result(
    cells: Mapping[str, str], file: str, place: str, times: Mapping[str, float], statuses: Sequence[str]
) -> ForeignResult:
    ((time_name, unit_us),) = times.items()
    text = cells[time_name].strip()
    status, time = _outcome(text, file, f"{place}.{time_name}")
    if statuses:
        status = status_named(cells[statuses[0]], file, f"{place}.{statuses[0]}")
        if status is Status.OK and time is None:
            raise LandscapeError(
                file, f"{place}.{time_name}", f"is {text[:40]!a}, but the config is said to be correct"
            )
    values = {name: _value(cell) for name, cell in cells.items() if name not in (time_name, *statuses)}
    return ForeignResult(place, values, status, None if time is None else time * unit_us)


def _outcome(text: str, file: str, place: str) -> tuple[Status, float | None]:
    """Returns what a cell of the column of times says: a time, or the name of an error."""
    if is_status(text):
        return status_named(text, file, place), None
    if not text:
        return Status.LAUNCH_FAILED, None
    time = _number(text)
    if time is None or time == -math.inf:
        raise LandscapeError(file, place, f"is {text[:_LONGEST_NUMBER]!a}, not a time or a status")
    if not math.isfinite(time) or time >= _FAILED_TIME:
        return Status.LAUNCH_FAILED, None
    return Status.OK, time


def _value(cell: str) -> object:
    text = cell.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _LONG_WHOLE.fullmatch(text):
        return number if abs(number := int(text)) <= MAX_INT else text
    value = _number(text)
    return text if value is None or not math.isfinite(value) else value


def _number(text: str) -> float | None:
    """Returns a number; None for other texts, such as ``1_0`` and digits outside of ASCII, which Python would read."""
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        return parse_number(text if text.startswith("+-") else text.removeprefix("+"))  # some tuners write +1.5
    except ValueError:
        return None
