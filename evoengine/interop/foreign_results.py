"""Landscapes built from the results of other tuners; the readers of each format pass on what a file says.

The recorded configs are the valid space, so restrictions need not be stated: a config that a file does not list is not
valid. Failed configs stay in the space with their status. The kind of a tunable follows from its values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evoengine.documents.bounds import MAX_INT
from evoengine.documents.escaping import printable
from evoengine.errors import LandscapeError
from evoengine.landscape.definition import MAX_VALUES, read_definition
from evoengine.landscape.file import keyed
from evoengine.landscape.landscape import MAX_CONFIGS, Landscape, LandscapeSource, RecordedFamily
from evoengine.model import Config, DeviceInfo, Evaluation, Status, Timing, Value
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal

MAX_TUNABLES: Final = 100
TIME_UNITS_US: Final[Mapping[str, float]] = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-3),
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "milisecond", "miliseconds"), 1e3),
    **dict.fromkeys(("s", "second", "seconds"), 1e6),
}
"""Microseconds per unit; tuners also write ``miliseconds``."""

_STATUSES: Final[Mapping[str, Status]] = {
    **{status.value: status for status in Status if status is not Status.DUPLICATE},
    # Kernel Tuner
    "invalidconfig": Status.INVALID_CONFIG,
    "compilationfailedconfig": Status.COMPILE_FAILED,
    "runtimefailedconfig": Status.LAUNCH_FAILED,
    "errorconfig": Status.CRASHED,
    # T4
    "correct": Status.OK,
    "constraints": Status.INVALID_CONFIG,
    "compile": Status.COMPILE_FAILED,
    "runtime": Status.LAUNCH_FAILED,
    "timeout": Status.TIMEOUT,
    "correctness": Status.PARITY_FAILED,
    # KTT
    "devicelimitsexceeded": Status.RESOURCE_LIMIT,
    "compilationfailed": Status.COMPILE_FAILED,
    "computationfailed": Status.LAUNCH_FAILED,
    "validationfailed": Status.PARITY_FAILED,
}
_LABEL: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_LONGEST_NAME: Final = 200
_LONGEST_SHOWN: Final = 40


@dataclass(frozen=True)
class ForeignResult:
    """One config and its result as a file states them."""

    place: str
    """Position in the file, for messages."""
    values: Mapping[str, object]
    """Value of each tunable."""
    status: Status
    median_us: float | None = None
    """Time of a correct config."""
    samples_us: Sequence[float] = ()
    """Single times; their range, widened to include the median, is the confidence interval."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the stages ``compile``, ``parity`` and ``bench``, as far as known."""


@dataclass(frozen=True)
class ForeignSource:
    """Origin of the results."""

    file: str
    tuner: str
    """Format of the file."""
    kernel: str
    device: str
    predicted: bool = False


def status_named(text: str, file: str, place: str) -> Status:
    """Returns the status for the word of a tuner, in upper or lower case.

    Raises:
        LandscapeError: The word is unknown.
    """
    status = _STATUSES.get(text.strip().lower())
    if status is None:
        raise LandscapeError(file, place, f"the status {printable(text[:_LONGEST_SHOWN])!r} is unknown")
    return status


def is_status(text: str) -> bool:
    return text.strip().lower() in _STATUSES


def rounded(value: float) -> float:
    """Rounds to ten digits, which removes the rounding error of a conversion of units."""
    return float(f"{value:.10g}")


def foreign_landscape(source: ForeignSource, results: Sequence[ForeignResult]) -> Landscape:
    """Builds the landscape of a file of results.

    Raises:
        LandscapeError: There is no result, a result lacks a tunable or a time, a value is not a number, text or switch,
            a config occurs twice, or a tunable has too many values.
    """
    file = source.file
    if not results:
        raise LandscapeError(file, "", "has no results")
    names = _names(results, file)
    columns = {name: _column(name, results, file) for name in names}
    space = _space(columns, source)
    device = DeviceInfo(source.tuner, _text(source.device, file, "device"), "", predicted=source.predicted)
    evaluations = []
    for number, result in enumerate(results):
        config = Config.of(space.family, {name: columns[name][number] for name in names})
        timing = _timing(result, source) if result.status is Status.OK else None
        evaluations.append(Evaluation(config, result.status, timing=timing, stage_seconds=dict(result.seconds)))
    _check_distinct(evaluations, results, file)
    family = RecordedFamily(space, "", "", len(evaluations), tuple(evaluations))
    provenance = LandscapeSource("", "", "", f"unknown: those of {source.tuner}", "every config of the file")
    return keyed(Landscape(None, device, {}, source.tuner, (family,), provenance))


def check_result_count(count: int, file: str) -> None:
    """Refuses more results than a landscape may have.

    Raises:
        LandscapeError: There are more than :data:`~evoengine.landscape.landscape.MAX_CONFIGS`.
    """
    if count > MAX_CONFIGS:
        raise LandscapeError(file, "", f"has more than {MAX_CONFIGS:,} results: give a part of them")


def _names(results: Sequence[ForeignResult], file: str) -> list[str]:
    names = list(results[0].values)
    if not 0 < len(names) <= MAX_TUNABLES:
        raise LandscapeError(file, results[0].place, f"has {len(names)} tunables: 1 to {MAX_TUNABLES} are read")
    for name in names:
        _text(name, file, results[0].place)
    for result in results:
        if result.values.keys() != results[0].values.keys():
            odd = min(result.values.keys() ^ results[0].values.keys())
            missing = "is missing" if odd in results[0].values else f"is not a tunable of {results[0].place}"
            raise LandscapeError(file, f"{result.place}.{printable(odd[:_LONGEST_SHOWN])}", missing)
    return names


def _text(text: str, file: str, place: str) -> str:
    if len(text) > _LONGEST_NAME or not text.isprintable():
        raise LandscapeError(file, place, f"has a name of over {_LONGEST_NAME} characters, or one that cannot be shown")
    return text


def _column(name: str, results: Sequence[ForeignResult], file: str) -> list[Value]:
    """Returns the values of one tunable: numbers only if all are whole and fit 64 bits, otherwise texts."""
    found = [_scalar(result.values[name], file, f"{result.place}.{name}") for result in results]
    if all(isinstance(value, int) or _is_whole(value) for value in found):
        found = [int(value) if isinstance(value, float) else value for value in found]
    kinds = {type(value) for value in found}
    values = [str(value) if len(kinds) > 1 or isinstance(value, float) else value for value in found]
    distinct = len(set(values))
    if distinct > MAX_VALUES:
        reason = f"has {distinct:,} values, more than {MAX_VALUES}: leave it out if it is not a tunable"
        raise LandscapeError(file, name, reason)
    return values


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) <= MAX_INT


def _scalar(value: object, file: str, place: str) -> Value | float:
    if isinstance(value, str):
        return _text(value, file, place)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise LandscapeError(file, place, "is not a finite number, a text or true or false")
    return value


def _space(columns: Mapping[str, list[Value]], source: ForeignSource) -> SearchSpace:
    tunables = []
    for name, values in columns.items():
        distinct = list(dict.fromkeys(values))
        if all(isinstance(value, bool) for value in distinct):
            kind, distinct = Boolean.kind, sorted(distinct, key=str)
        elif all(isinstance(value, int) and not isinstance(value, bool) for value in distinct):
            kind, distinct = Ordinal.kind, sorted(distinct, key=int)
        else:
            kind = Categorical.kind
        tunables.append({"name": name, "kind": kind, "values": distinct, "unit": "", "doc": "", "when": ""})
    family = "".join(letter if letter in _LABEL else "_" for letter in source.kernel.lower()) or "kernel"
    content: dict[str, Any] = {"tunables": tunables, "derived": [], "constraints": [], "starts": []}
    doc = _text(source.kernel, source.file, "kernel")
    return read_definition({"family": family, "doc": doc, **content}, source.file, "")


def _timing(result: ForeignResult, source: ForeignSource) -> Timing:
    median = result.median_us
    if median is None:
        raise LandscapeError(source.file, result.place, "is correct but has no time")
    times = [rounded(median), *(rounded(time) for time in result.samples_us if time > 0)]
    if not 0 < min(times) <= max(times) < math.inf:
        raise LandscapeError(source.file, result.place, f"impossible time: {median} us")
    return Timing(times[0], min(times), max(times), source.predicted, source.tuner)


def _check_distinct(evaluations: Sequence[Evaluation], results: Sequence[ForeignResult], file: str) -> None:
    first: dict[Config, str] = {}
    for evaluation, result in zip(evaluations, results, strict=True):
        earlier = first.setdefault(evaluation.config, result.place)
        if earlier != result.place:
            raise LandscapeError(file, result.place, f"is the config of {earlier}: each may occur once")
