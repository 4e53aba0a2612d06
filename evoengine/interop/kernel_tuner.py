"""Landscapes as Kernel Tuner's cache files, and such files as landscapes.

A cache file is JSON: ``device_name``, ``kernel_name``, ``problem_size``, ``tune_params_keys``, ``tune_params``,
``objective``, and ``cache``: for each config, under its values with commas between, an object of the values by name and
``time`` in milliseconds, or an error's name where there is no time (Kernel Tuner 1.5.0, ``util.py``: ``process_cache``,
``read_cache``). A file that lacks its last brackets was still being written, and is read as far as it goes.

What Kernel Tuner has no place for goes along under the key ``evoengine``, which it ignores, of the file and of each
config. So a file of ours is read back as the landscape that it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from evoengine.errors import LandscapeError
from evoengine.landscape.checked import Checked
from evoengine.landscape.file import facts_document, keyed, read_facts
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily, median_us
from evoengine.landscape.tunables import definition_document, read_definition
from evoengine.model import Config, DeviceInfo, Evaluation, Resources, Status, Timing, Value
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal

OWN: Final = "evoengine"
"""The key of what is ours."""

_ERRORS: Final[Mapping[str, Status]] = {
    "InvalidConfig": Status.INVALID_CONFIG,
    "CompilationFailedConfig": Status.COMPILE_FAILED,
    "RuntimeFailedConfig": Status.LAUNCH_FAILED,
    "ErrorConfig": Status.CRASHED,
}
"""Kernel Tuner's error classes, and what they are here."""
_COMPILE_ERRORS: Final = frozenset((Status.RENDER_FAILED, Status.COMPILE_FAILED, Status.RESOURCE_LIMIT))
_STAGES: Final[Mapping[str, str]] = {
    "compile_time": "compile",
    "verification_time": "parity",
    "benchmark_time": "bench",
}
"""Kernel Tuner's times of a config, in milliseconds, and our stages, in seconds."""
_LABEL: Final = "".join(map(chr, range(ord("a"), ord("z") + 1))) + "0123456789_"


def cache_document(landscape: Landscape, family: RecordedFamily) -> dict[str, Any]:
    """One family as a cache file."""
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
        LandscapeError: it cannot be read, or something in it is wrong.
    """
    file = str(path)
    whole = Checked(file, "", _parsed(path))
    entries = whole.part("cache")
    if not entries.content:
        raise whole.error("cache", "is empty")
    if OWN in whole.content:
        own = whole.part(OWN)
        facts, space = read_facts(own), read_definition(own)
        hashes = (own.text("space_hash"), own.text("template_hash"))
        valid_configs = own.whole("valid_configs")
    else:
        facts, space = _foreign_facts(whole), _foreign_space(whole)
        hashes, valid_configs = ("", ""), len(entries.content)
    evaluations = tuple(_evaluations(entries, space, facts, hashes[1]))
    if len({evaluation.config for evaluation in evaluations}) < len(evaluations):
        raise whole.error("cache", "holds a config twice")
    family = RecordedFamily(space, *hashes, valid_configs, evaluations)
    return keyed(Landscape(facts.problem, facts.device, facts.limits, facts.method, (family,), facts.provenance))


def kernel_tuner_error(status: Status) -> str:
    """Kernel Tuner's error class for a status."""
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
        "time": median_us(evaluation) / 1e3 if evaluation.ok else kernel_tuner_error(evaluation.status),
        **{name: 1e3 * evaluation.stage_seconds.get(stage, 0.0) for name, stage in _STAGES.items()},
        "strategy_time": 0,
        "framework_time": 0,
        OWN: own,
    }


def _parsed(path: Path | str) -> object:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise LandscapeError(path, "", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LandscapeError(path, "", "is not text, as Kernel Tuner's caches are") from None
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        pass
    try:
        return json.loads(text.removesuffix(",") + "}\n}")
    except (json.JSONDecodeError, RecursionError) as error:
        raise LandscapeError(path, "", f"is not JSON: {error}") from None


def _foreign_facts(whole: Checked) -> Landscape:
    """What is known besides the configs; a landscape without any."""
    objective = whole.content.get("objective", "time")
    if objective not in ("time", ["time"]):
        raise whole.error("objective", f"is {objective!r}, but only times can be searched here")
    device = DeviceInfo("kernel-tuner", whole.text("device_name"), "", predicted=False)
    provenance = LandscapeSource("", "", "", "unknown: what Kernel Tuner was asked to check", "the whole cache file")
    return Landscape(None, device, {}, "kernel-tuner", (), provenance)


def _foreign_space(whole: Checked) -> SearchSpace:
    """The tunables, by what their values are."""
    parameters = whole.part("tune_params")
    tunables = []
    for name in whole.texts("tune_params_keys"):
        values = parameters.values(name)
        if all(isinstance(value, bool) for value in values):
            kind, ordered = Boolean.kind, list(values)
        elif all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            kind, ordered = Ordinal.kind, sorted(values, key=int)
        else:
            kind, ordered = Categorical.kind, list(values)
        tunables.append({"name": name, "kind": kind, "values": ordered, "unit": "", "doc": "", "when": ""})
    kernel = whole.text("kernel_name")
    family = "".join(letter if letter in _LABEL else "_" for letter in kernel.lower())
    lists: dict[str, Any] = {"tunables": tunables, "derived": [], "constraints": [], "starts": []}
    return read_definition(Checked(whole.file, "tune_params", {"family": family, "doc": kernel, **lists}))


def _evaluations(entries: Checked, space: SearchSpace, facts: Landscape, template_hash: str) -> Iterator[Evaluation]:
    for key in entries.content:
        entry = entries.part(key)
        values: dict[str, Value] = {}
        for tunable in space.tunables:
            value = entry.get(tunable.name)
            if not isinstance(value, (int, str)) or not tunable.holds(value):
                raise entry.error(tunable.name, f"is {value!r}, which tune_params does not list")
            values[tunable.name] = value
        status, own = _status(entry), entry.part(OWN) if OWN in entry.content else None
        yield Evaluation(
            config=Config.of(space.family, values),
            status=status,
            reason=own.text("reason") if own else "",
            code_hash=own.text("code_hash") if own else "",
            template_hash=template_hash,
            resources=_resources(own) if own else None,
            timing=_timing(entry, own, facts) if status is Status.OK else None,
            stage_seconds={
                stage: _without_rest(_amount(entry, name) / 1e3)
                for name, stage in _STAGES.items()
                if entry.content.get(name)
            },
        )


def _status(entry: Checked) -> Status:
    found = [value for value in entry.content.values() if isinstance(value, str) and value in _ERRORS]
    if OWN in entry.content:
        own, name = entry.part(OWN), entry.part(OWN).text("status")
        known = {status.value: status for status in Status}
        if name not in known or (known[name] is Status.OK) == bool(found):
            raise own.error("status", f"'{name}' cannot be")
        return known[name]
    return _ERRORS[found[0]] if found else Status.OK


def _timing(entry: Checked, own: Checked | None, facts: Landscape) -> Timing:
    """Of a foreign config low and high are the range of its single times, which its average need not lie in."""
    median = _us(_amount(entry, "time"))
    if own is not None:
        low, high = _amount(own, "low_us"), _amount(own, "high_us")
    else:
        listed = entry.items("times") if "times" in entry.content else []
        times = [_us(time) for time in entry.numbers("times", len(listed)) if time] if listed else []
        low, high = min([median, *times]), max([median, *times])
    if not 0 < low <= median <= high:
        raise entry.error("time", f"impossible times: {median} us between {low} and {high}")
    return Timing(median, low, high, facts.device.predicted, facts.method)


def _resources(own: Checked) -> Resources | None:
    if own.get("resources") is None:
        return None
    part = own.part("resources")
    return Resources(*(part.whole(name) for name in Resources.__dataclass_fields__))


def _amount(entry: Checked, name: str) -> float:
    (amount,) = Checked(entry.file, entry.key, {name: [entry.get(name)]}).numbers(name, 1)
    if amount is None:
        raise entry.error(name, "is null")
    return float(amount)


def _us(milliseconds: float) -> float:
    return _without_rest(1e3 * milliseconds)


def _without_rest(value: float) -> float:
    """A number without what a division or a multiplication by 1000 left behind."""
    return float(f"{value:.10g}")
