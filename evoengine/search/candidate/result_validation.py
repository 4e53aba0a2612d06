"""Validation of the results that workers return: do they belong to the candidate, and are the values possible?

:mod:`evoengine.device.workers.wire` has checked the types. Here the values are checked: a worker whose memory was
corrupted may return anything, and a stored row is final.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from evoengine.bench.acceptance import MIN_PAIRS, judge_duel, judge_predictions
from evoengine.bench.racing import MIN_INTERVAL_SAMPLES
from evoengine.bench.timer import MIN_SAMPLES
from evoengine.model import Config, Duel, Resources, Status, Timing, Verdict
from evoengine.search.candidate.results import Admission, Compilation, Examination
from evoengine.search.candidate.setup import Setup
from evoengine.statistics import median_interval

_COMPILED: Final = frozenset(
    (Status.OK, Status.INVALID_CONFIG, Status.RENDER_FAILED, Status.COMPILE_FAILED, Status.RESOURCE_LIMIT)
)
_EXAMINED: Final = frozenset(
    (
        Status.OK,
        Status.PRUNED,
        Status.PARITY_FAILED,
        Status.LAUNCH_FAILED,
        Status.RESOURCE_LIMIT,
        Status.TIMEOUT,
        Status.CRASHED,
    )
)
_TIMED: Final = (Status.OK, Status.PRUNED)


def compilation_objection(config: Config, arch: str, compilation: Compilation) -> str:
    """Returns what is impossible about the compilation of a config; empty when nothing is."""
    configs = {compilation.config, *(source.config for source in compilation.sources)}
    if configs != {config}:
        return f"it is about {compilation.config.key}, not about {config.key}"
    if compilation.status not in _COMPILED:
        return f"a compilation does not end as {compilation.status.value}"
    if (compilation.status is Status.OK) == bool(compilation.reason):
        return f"{compilation.status.value} with the reason '{compilation.reason}'"
    if compilation.status is Status.OK and compilation.candidate is None:
        return "ok without a source or a binary"
    for binary in compilation.binaries:
        if binary.arch != arch:
            return f"a binary for {binary.arch}, not for {arch}"
        if not binary.code_hash or not binary.ptx:
            return "a binary without code"
        if any(_is_negative(needs) for needs in (binary.resources, *(needs for _, needs in binary.further))):
            return "negative resources"
    if compilation.admitted:
        return "admitted by a compiler"
    return _seconds_objection(compilation.stage_seconds)


def admission_objection(admission: Admission) -> str:
    """Returns what is impossible about an admission; empty when nothing is."""
    if (admission.status is Status.OK) == bool(admission.reason):
        return f"{admission.status.value} with the reason '{admission.reason}'"
    return _seconds_objection({"admit": admission.seconds})


def examination_objection(setup: Setup, examination: Examination) -> str:
    """Returns what is impossible about an examination; empty when nothing is."""
    status, verdict, timing = examination.status, examination.verdict, examination.timing
    if status not in _EXAMINED:
        return f"an examination does not end as {status.value}"
    if (status is Status.OK) == bool(examination.reason):
        return f"{status.value} with the reason '{examination.reason}'"
    if (status in _TIMED) != (timing is not None):
        return f"{status.value} {'without' if timing is None else 'with'} a time"
    if status in _TIMED and (verdict is None or not verdict.passed):
        return f"{status.value}, but the parity gate was not passed"
    if status is Status.PRUNED and (setup.parts[0].plan.race is None or (timing is not None and timing.predicted)):
        return "pruned although racing is off"
    if status is Status.PARITY_FAILED and (verdict is None or verdict.passed):
        return "parity failed, but not by the gate's verdict"
    return (
        (_verdict_objection(setup, verdict) if verdict is not None else "")
        or (_timing_objection(setup, timing, status) if timing is not None else "")
        or _seconds_objection(examination.stage_seconds)
    )


def duel_objection(setup: Setup, duel: Duel) -> str:
    """Returns what is impossible about a duel; empty when nothing is. Its outcome is computed again from its times."""
    if not _are_times((*duel.challenger_us, *duel.champion_us)):
        return "a duel with impossible times"
    if len(duel.challenger_us) != len(duel.champion_us):
        return "a duel with an unequal number of times"
    if setup.device.kind == "emulator":
        if len(duel.challenger_us) != 1:
            return "more than one pair of predictions"
        again = judge_predictions(duel.challenger_us[0], duel.champion_us[0], setup.threshold)
    else:
        if len(duel.challenger_us) < MIN_PAIRS:
            return f"a duel of {len(duel.challenger_us)} pairs"
        again = judge_duel(duel.challenger_us, duel.champion_us, setup.threshold)
    return "" if again == replace(duel, telemetry=None) else "a duel whose outcome does not follow from its times"


def energy_objection(energy_uj: float | None) -> str:
    """Returns what is impossible about an energy per call; empty when nothing is."""
    return "" if energy_uj is None or _are_times((energy_uj,)) else f"an impossible energy of {energy_uj} uJ"


def _verdict_objection(setup: Setup, verdict: Verdict) -> str:
    seed = setup.parts[0].pool.seed
    if verdict.inputs_seed != seed:
        return f"a verdict on inputs of seed {verdict.inputs_seed}, not {seed}"
    if verdict.cases < 1 or verdict.passed == bool(verdict.reason):
        return f"a verdict after {verdict.cases} cases with the reason '{verdict.reason}'"
    if verdict.passed and not (0 <= verdict.max_error <= verdict.tolerance < math.inf):
        return f"passed with error {verdict.max_error} of {verdict.tolerance}"
    return ""


def _timing_objection(setup: Setup, timing: Timing, status: Status) -> str:
    plan, predicted = setup.parts[0].plan, setup.device.kind == "emulator"
    ends = (timing.low_us, timing.median_us, timing.high_us)
    further = [us for us in (timing.baseline_us, timing.energy_uj) if us is not None]
    if not _are_times((*ends, *timing.samples_us, *further)) or list(ends) != sorted(ends):
        return f"impossible times {ends}"
    if timing.predicted != predicted or not timing.method:
        return f"a {'predicted' if timing.predicted else 'measured'} time by '{timing.method}'"
    if predicted:
        return ""
    fewest = MIN_INTERVAL_SAMPLES if status is Status.PRUNED else _fewest_samples(setup, timing)
    if timing.method != plan.stopwatch.method or len(timing.samples_us) < fewest:
        return f"{len(timing.samples_us)} samples by '{timing.method}'"
    interval = median_interval(timing.samples_us)
    if ends != (interval.low, interval.median, interval.high):
        return f"a median of {timing.median_us} that is not that of its samples"
    return ""


def _fewest_samples(setup: Setup, timing: Timing) -> int:
    """Minimum number of samples of a full measurement, which was set by a first sample of up to twice the median."""
    medians = [part.median_us for part in timing.parts or ()] or [timing.median_us]
    counts = [part.plan.samples_for(2 * us) for part, us in zip(setup.parts, medians, strict=False)]
    return min(MIN_SAMPLES, *counts)


def _are_times(values: Iterable[float]) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)


def _is_negative(needs: Resources) -> bool:
    parts = (needs.registers, needs.spill_bytes, needs.stack_bytes, needs.static_smem_bytes, needs.dynamic_smem_bytes)
    return min(*parts, needs.threads) < 0


def _seconds_objection(seconds: Mapping[str, float]) -> str:
    wrong = {name: value for name, value in seconds.items() if not (math.isfinite(value) and value >= 0)}
    return f"impossible seconds {wrong}" if wrong else ""
