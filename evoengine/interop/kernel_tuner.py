"""Landscapes as Kernel Tuner's cache files, and such files as landscapes.

A cache file is JSON with the entries ``device_name``, ``kernel_name``, ``problem_size``, ``tune_params_keys``,
``tune_params``, ``objective`` and ``cache``. The cache maps the comma-separated values of each config to an object with
the values by name and ``time`` in milliseconds, or the name of an error if there is no time (Kernel Tuner 1.5.0,
``util.py``: ``process_cache``, ``read_cache``). A file that lacks its closing brackets belongs to a run in progress;
its complete entries are read.

Facts without a counterpart in Kernel Tuner stand under the key ``evoengine`` of the file and of each config. Kernel
Tuner ignores them, and they make the round trip of a landscape lossless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from evoengine.documents import Amount, convert_document, key_path
from evoengine.documents.bounds import BoundsError, parse_json
from evoengine.documents.escaping import printable
from evoengine.documents.plain_numbers import parse_number
from evoengine.errors import LandscapeError, UsageError
from evoengine.interop.foreign_results import (
    ForeignResult,
    ForeignSource,
    check_result_count,
    foreign_landscape,
    rounded,
)
from evoengine.landscape.columns import Count
from evoengine.landscape.definition import definition_document, read_definition
from evoengine.landscape.file import facts_document, keyed, read_facts
from evoengine.landscape.landscape import Landscape, RecordedFamily, median_us
from evoengine.model import Config, Evaluation, Resources, Status, Timing, Value
from evoengine.space.search_space import SearchSpace

OWN: Final = "evoengine"
"""Key of the entries that only EvoEngine reads."""

_ERRORS: Final[Mapping[str, Status]] = {
    "InvalidConfig": Status.INVALID_CONFIG,
    "CompilationFailedConfig": Status.COMPILE_FAILED,
    "RuntimeFailedConfig": Status.LAUNCH_FAILED,
    "ErrorConfig": Status.CRASHED,
}
"""Kernel Tuner's error classes and the corresponding statuses."""
_COMPILE_ERRORS: Final = frozenset((Status.RENDER_FAILED, Status.COMPILE_FAILED, Status.RESOURCE_LIMIT))
_STAGES: Final[Mapping[str, str]] = {
    "compile_time": "compile",
    "verification_time": "parity",
    "benchmark_time": "bench",
}
"""Kernel Tuner's times of a config, in milliseconds, and the corresponding stages, in seconds."""
_FAILED_US: Final = 1e23
"""Time of a failed config in files of before Kernel Tuner 0.4: 1e20 ms."""
_LONGEST_SHOWN: Final = 80


class _CacheDocument(msgspec.Struct, frozen=True):
    device_name: str
    kernel_name: str
    tune_params_keys: list[str]
    tune_params: dict[str, list[int | float | str | bool | None]]
    cache: Annotated[dict[str, dict[str, object]], Meta(min_length=1)]
    objective: object = "time"
    evoengine: dict[str, object] | None = None


class _OwnDocument(msgspec.Struct, frozen=True):
    space_hash: str
    template_hash: str
    valid_configs: Count


class _OwnEntry(msgspec.Struct, frozen=True):
    status: Status
    reason: str
    code_hash: str
    resources: Resources | None
    low_us: Amount | None = None
    high_us: Amount | None = None


class _Entry(msgspec.Struct, frozen=True):
    time: object = None
    times: list[Amount | None] = msgspec.field(default_factory=list)
    compile_time: Amount | None = None
    verification_time: Amount | None = None
    benchmark_time: Amount | None = None
    evoengine: _OwnEntry | None = None


def cache_document(landscape: Landscape, family: RecordedFamily) -> dict[str, Any]:
    """Returns one family of a landscape as the content of a cache file.

    Raises:
        UsageError: Two configs have the same key, because their texts contain commas.
    """
    space, problem = family.space, landscape.problem
    cache = {
        ",".join(str(evaluation.config[tunable.name]) for tunable in space.tunables): _entry(space, evaluation)
        for evaluation in family.evaluations
    }
    if len(cache) < len(family.evaluations):
        raise UsageError(
            f"Kernel Tuner's cache cannot tell all configs of {family.name} apart, because it separates their values "
            "by commas: give --format t4"
        )
    return {
        "device_name": landscape.device.name,
        "kernel_name": family.name,
        "problem_size": [1] if problem is None else [problem.seq_q, problem.heads, problem.batch],
        "tune_params_keys": [tunable.name for tunable in space.tunables],
        "tune_params": {tunable.name: list(tunable.values) for tunable in space.tunables},
        "objective": "time",
        OWN: {
            **facts_document(landscape),
            **definition_document(space),
            "space_hash": family.space_hash,
            "template_hash": family.template_hash,
            "valid_configs": family.valid_configs,
        },
        "cache": cache,
    }


def parse_cache(text: str, path: Path | str) -> object:
    """Parses the JSON of a cache file, also of one that lacks its closing brackets.

    Raises:
        LandscapeError: The text is not JSON.
    """
    whole = text.strip()
    try:
        return parse_json(whole, finite=False)
    except BoundsError as error:
        reason = str(error)
    try:
        return parse_json(whole.removesuffix(",") + "}\n}", finite=False)
    except BoundsError:
        raise LandscapeError(path, "", reason) from None


def cache_landscape(content: object, path: Path | str) -> Landscape:
    """Builds the landscape of a cache file.

    Args:
        content: The file, as parsed from JSON.
        path: Name of the file, for messages.

    Raises:
        LandscapeError: An entry is missing or invalid.
    """
    file = str(path)
    document = convert_document(content, _CacheDocument, file, LandscapeError)
    check_result_count(len(document.cache), file)
    _check_tunables(document, file)
    return _foreign_landscape(document, file) if document.evoengine is None else _own_landscape(document, file)


def _distinct(value: object) -> tuple[bool, object]:
    """Returns what tells ``true`` and 1 apart, which are equal in Python."""
    return isinstance(value, bool), value


def _check_tunables(document: _CacheDocument, file: str) -> None:
    """Refuses a tunable or a value that occurs twice; ``true`` and 1 are equal in Python, but two values."""
    if len(set(document.tune_params_keys)) < len(document.tune_params_keys):
        raise LandscapeError(file, "tune_params_keys", "names a tunable twice")
    for name, values in document.tune_params.items():
        if len(set(map(_distinct, values))) < len(values):
            raise LandscapeError(file, key_path(("tune_params", name)), "lists a value twice")


def _own_landscape(document: _CacheDocument, file: str) -> Landscape:
    """Returns the landscape of a file that EvoEngine wrote."""
    own = convert_document(document.evoengine, _OwnDocument, file, LandscapeError, OWN)
    facts, space = read_facts(document.evoengine, file, OWN), read_definition(document.evoengine, file, OWN)
    evaluations = tuple(
        _own_evaluation(key, content, file, space, facts, own.template_hash) for key, content in document.cache.items()
    )
    if len({evaluation.config for evaluation in evaluations}) < len(evaluations):
        raise LandscapeError(file, "cache", "holds a config twice")
    family = RecordedFamily(space, own.space_hash, own.template_hash, own.valid_configs, evaluations)
    return keyed(Landscape(facts.problem, facts.device, facts.limits, facts.method, (family,), facts.provenance))


def _foreign_landscape(document: _CacheDocument, file: str) -> Landscape:
    if document.objective not in ("time", ["time"]):
        raise LandscapeError(file, "objective", f"is {document.objective!r}: only times can be searched")
    for name in document.tune_params_keys:
        if name not in document.tune_params:
            raise LandscapeError(file, f"tune_params.{name}", "is missing")
    source = ForeignSource(file, "kernel-tuner", document.kernel_name, document.device_name)
    known = {name: frozenset(map(_distinct, document.tune_params[name])) for name in document.tune_params_keys}
    results = [_foreign_result(key, content, known, file) for key, content in document.cache.items()]
    return foreign_landscape(source, results)


def _foreign_result(
    key: str, content: dict[str, object], known: Mapping[str, frozenset[object]], file: str
) -> ForeignResult:
    place = f"cache.{key}"
    entry = convert_document(content, _Entry, file, LandscapeError, place)
    values = {}
    for name, listed in known.items():
        values[name] = content.get(name)
        value = values[name]
        if isinstance(value, list | dict) or _distinct(value) not in listed:
            raise LandscapeError(file, f"{place}.{name}", f"is {values[name]!r}, which tune_params does not list")
    status, median_us = _status(content, entry, file, place), None
    if status is Status.OK:
        median_us = 1e3 * convert_document(entry.time, Amount, file, LandscapeError, f"{place}.time")
        if median_us >= _FAILED_US:
            status, median_us = Status.LAUNCH_FAILED, None
    _check_key(key, tuple(values.values()), file)
    samples = [1e3 * time for time in entry.times if time]
    return ForeignResult(place, values, status, median_us, samples, _stage_seconds(entry))


def _check_key(key: str, values: Sequence[object], file: str) -> None:
    """Refuses an entry whose key contradicts its values; other programs may write 1.0 or 1 for one value."""
    if key == ",".join(map(str, values)):
        return
    parts = [part.strip() for part in key.split(",")]
    if len(parts) != len(values) or not all(map(_states, parts, values)):
        stated = printable(",".join(map(str, values)))[:_LONGEST_SHOWN]
        raise LandscapeError(file, f"cache.{key}", f"contradicts its values, {stated}")


def _states(part: str, value: object) -> bool:
    """Whether a part of a key states a value."""
    if part == str(value).strip() or (isinstance(value, bool) and part == str(value).lower()):
        return True
    try:
        return isinstance(value, int | float) and parse_number(part) == value
    except ValueError:
        return False


def _kernel_tuner_error(status: Status) -> str:
    """Returns Kernel Tuner's error class for a status."""
    if status in _COMPILE_ERRORS:
        return "CompilationFailedConfig"
    return "InvalidConfig" if status is Status.INVALID_CONFIG else "RuntimeFailedConfig"


def _entry(space: SearchSpace, evaluation: Evaluation) -> dict[str, Any]:
    timing = evaluation.timing
    own: dict[str, Any] = {"status": evaluation.status.value, "reason": evaluation.reason}
    own |= {"code_hash": evaluation.code_hash, "resources": None}
    if evaluation.resources is not None:
        own["resources"] = asdict(evaluation.resources)
    if timing is not None:
        own |= {"low_us": timing.low_us, "high_us": timing.high_us}
    return {
        **{tunable.name: evaluation.config[tunable.name] for tunable in space.tunables},
        "time": median_us(evaluation) / 1e3 if evaluation.ok else _kernel_tuner_error(evaluation.status),
        **{name: 1e3 * evaluation.stage_seconds.get(stage, 0.0) for name, stage in _STAGES.items()},
        "strategy_time": 0,
        "framework_time": 0,
        OWN: own,
    }


def _own_evaluation(
    entry_key: str, content: dict[str, object], file: str, space: SearchSpace, facts: Landscape, template_hash: str
) -> Evaluation:
    key = f"cache.{entry_key}"
    entry = convert_document(content, _Entry, file, LandscapeError, key)
    own = convert_document(content.get(OWN), _OwnEntry, file, LandscapeError, f"{key}.{OWN}")
    values: dict[str, Value] = {}
    for tunable in space.tunables:
        value = content.get(tunable.name)
        if not isinstance(value, (int, str)) or not tunable.holds(value):
            raise LandscapeError(file, f"{key}.{tunable.name}", f"is {value!r}, which tune_params does not list")
        values[tunable.name] = value
    _check_key(entry_key, tuple(values.values()), file)
    if own.resources is not None and min(astuple(own.resources)) < 0:
        raise LandscapeError(file, f"{key}.{OWN}.resources", "has a negative number")
    status = _status(content, entry, file, key)
    return Evaluation(
        config=Config.of(space.family, values),
        status=status,
        reason=own.reason,
        code_hash=own.code_hash,
        template_hash=template_hash,
        resources=own.resources,
        timing=_own_timing(entry, own, file, key, facts) if status is Status.OK else None,
        stage_seconds=_stage_seconds(entry),
    )


def _stage_seconds(entry: _Entry) -> dict[str, float]:
    milliseconds = {stage: getattr(entry, name) for name, stage in _STAGES.items()}
    return {stage: rounded(amount / 1e3) for stage, amount in milliseconds.items() if amount}


def _status(content: Mapping[str, object], entry: _Entry, file: str, key: str) -> Status:
    """Returns the status: EvoEngine's own, or that of the first error name among the entry's values."""
    found = [value for value in content.values() if isinstance(value, str) and value in _ERRORS]
    if entry.evoengine is None:
        return _ERRORS[found[0]] if found else Status.OK
    status = entry.evoengine.status
    if (status is Status.OK) == bool(found):
        time = "an error" if found else "a time"
        raise LandscapeError(file, f"{key}.{OWN}.status", f"is {status.value}, but the config has {time}")
    return status


def _own_timing(entry: _Entry, own: _OwnEntry, file: str, key: str, facts: Landscape) -> Timing:
    median = rounded(1e3 * convert_document(entry.time, Amount, file, LandscapeError, f"{key}.time"))
    low, high = own.low_us, own.high_us
    if low is None or high is None or not 0 < low <= median <= high:
        raise LandscapeError(file, f"{key}.time", f"impossible times: {median} us between {low} and {high}")
    return Timing(median, low, high, facts.device.predicted, facts.method)
