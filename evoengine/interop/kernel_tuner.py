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

from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from evoengine.documents import convert_document
from evoengine.documents.bounds import BoundsError, decode_text, parse_json, read_bounded
from evoengine.errors import LandscapeError
from evoengine.landscape.columns import Amount, Count
from evoengine.landscape.definition import definition_document, read_definition
from evoengine.landscape.file import facts_document, keyed, read_facts
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily, median_us
from evoengine.landscape.packing import MOST_BYTES
from evoengine.model import Config, DeviceInfo, Evaluation, Resources, Status, Timing, Value
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal

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
_LABEL: Final = "".join(map(chr, range(ord("a"), ord("z") + 1))) + "0123456789_"


class _CacheDocument(msgspec.Struct, frozen=True):
    device_name: str
    kernel_name: str
    tune_params_keys: list[str]
    tune_params: dict[str, tuple[Value, ...]]
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
    """Returns one family of a landscape as the content of a cache file."""
    space, problem = family.space, landscape.problem
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
        "cache": {
            ",".join(str(evaluation.config[tunable.name]) for tunable in space.tunables): _entry(space, evaluation)
            for evaluation in family.evaluations
        },
    }


def read_cache(path: Path | str) -> Landscape:
    """Reads a cache file.

    Raises:
        LandscapeError: The file cannot be read, or an entry is missing or invalid.
    """
    file = str(path)
    document = convert_document(_parsed(path), _CacheDocument, file, LandscapeError)
    if document.evoengine is not None:
        own = convert_document(document.evoengine, _OwnDocument, file, LandscapeError, OWN)
        facts, space = read_facts(document.evoengine, file, OWN), read_definition(document.evoengine, file, OWN)
        hashes, valid_configs = (own.space_hash, own.template_hash), own.valid_configs
    else:
        facts, space = _foreign_facts(document, file), _foreign_space(document, file)
        hashes, valid_configs = ("", ""), len(document.cache)
    evaluations = tuple(
        _read_entry(content, file, f"cache.{key}", space, facts, hashes[1]) for key, content in document.cache.items()
    )
    if len({evaluation.config for evaluation in evaluations}) < len(evaluations):
        raise LandscapeError(file, "cache", "holds a config twice")
    family = RecordedFamily(space, *hashes, valid_configs, evaluations)
    return keyed(Landscape(facts.problem, facts.device, facts.limits, facts.method, (family,), facts.provenance))


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


def _parsed(path: Path | str) -> object:
    try:
        text = decode_text(read_bounded(Path(path), MOST_BYTES)).strip()
    except OSError as error:
        raise LandscapeError(path, "", f"cannot be read: {error.strerror}") from None
    except BoundsError as error:
        raise LandscapeError(path, "", f"{error}: give a cache file of Kernel Tuner") from None
    try:
        return parse_json(text, finite=False)
    except BoundsError:
        pass
    try:
        return parse_json(text.removesuffix(",") + "}\n}", finite=False)
    except BoundsError as error:
        raise LandscapeError(path, "", str(error)) from None


def _foreign_facts(document: _CacheDocument, file: str) -> Landscape:
    """Returns a landscape without families, with the facts that a foreign cache file states."""
    if document.objective not in ("time", ["time"]):
        raise LandscapeError(file, "objective", f"is {document.objective!r}: only times can be searched")
    device = DeviceInfo("kernel-tuner", document.device_name, "", predicted=False)
    provenance = LandscapeSource("", "", "", "unknown: what Kernel Tuner was asked to check", "the whole cache file")
    return Landscape(None, device, {}, "kernel-tuner", (), provenance)


def _foreign_space(document: _CacheDocument, file: str) -> SearchSpace:
    """Returns the search space of a foreign cache file; the kind of each tunable follows from its values."""
    tunables = []
    for name in document.tune_params_keys:
        if name not in document.tune_params:
            raise LandscapeError(file, f"tune_params.{name}", "is missing")
        values = document.tune_params[name]
        if all(isinstance(value, bool) for value in values):
            kind = Boolean.kind
        elif all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            kind, values = Ordinal.kind, tuple(sorted(values, key=int))
        else:
            kind = Categorical.kind
        tunables.append({"name": name, "kind": kind, "values": values, "unit": "", "doc": "", "when": ""})
    kernel = document.kernel_name
    family = "".join(letter if letter in _LABEL else "_" for letter in kernel.lower())
    lists: dict[str, Any] = {"tunables": tunables, "derived": [], "constraints": [], "starts": []}
    return read_definition({"family": family, "doc": kernel, **lists}, file, "tune_params")


def _read_entry(
    content: dict[str, object], file: str, key: str, space: SearchSpace, facts: Landscape, template_hash: str
) -> Evaluation:
    entry = convert_document(content, _Entry, file, LandscapeError, key)
    values: dict[str, Value] = {}
    for tunable in space.tunables:
        value = content.get(tunable.name)
        if not isinstance(value, (int, str)) or not tunable.holds(value):
            raise LandscapeError(file, f"{key}.{tunable.name}", f"is {value!r}, which tune_params does not list")
        values[tunable.name] = value
    status, own = _status(content, entry, file, key), entry.evoengine
    if own is not None and own.resources is not None and min(astuple(own.resources)) < 0:
        raise LandscapeError(file, f"{key}.{OWN}.resources", "has a negative number")
    seconds = {stage: getattr(entry, name) for name, stage in _STAGES.items()}
    return Evaluation(
        config=Config.of(space.family, values),
        status=status,
        reason=own.reason if own else "",
        code_hash=own.code_hash if own else "",
        template_hash=template_hash,
        resources=own.resources if own else None,
        timing=_timing(entry, file, key, facts) if status is Status.OK else None,
        stage_seconds={stage: _rounded(amount / 1e3) for stage, amount in seconds.items() if amount},
    )


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


def _timing(entry: _Entry, file: str, key: str, facts: Landscape) -> Timing:
    """Returns the timing of a correct config.

    The bounds of a foreign config are the range of its single times. They are widened to include ``time``, which need
    not lie between the single times.
    """
    median = _rounded(1e3 * convert_document(entry.time, Amount, file, LandscapeError, f"{key}.time"))
    if entry.evoengine is not None:
        low, high = entry.evoengine.low_us, entry.evoengine.high_us
    else:
        times = [median, *(_rounded(1e3 * time) for time in entry.times if time)]
        low, high = min(times), max(times)
    if low is None or high is None or not 0 < low <= median <= high:
        raise LandscapeError(file, f"{key}.time", f"impossible times: {median} us between {low} and {high}")
    return Timing(median, low, high, facts.device.predicted, facts.method)


def _rounded(value: float) -> float:
    """Rounds to ten digits, which removes the rounding error of a multiplication or division by 1000."""
    return float(f"{value:.10g}")
