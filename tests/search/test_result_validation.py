"""Results of workers: valid ones pass, and what a corrupted process might return is refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.kernel.records import Binary, Kernel
from evoengine.model import Config, GpuReading, Problem, Status, Telemetry, Timing, Verdict
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner
from evoengine.search.candidate.result_validation import (
    compilation_objection,
    duel_objection,
    energy_objection,
    examination_objection,
)
from evoengine.search.candidate.results import Candidate, Compilation, Examination
from evoengine.search.candidate.setup import Setup, SetupRequest, prepare
from evoengine.statistics import median_interval
from tests.device.scalar_kernel import build

PROBLEM = Problem(1, 1, 16, 8)
NAN, INF = math.nan, math.inf
SEEN = Telemetry(GpuReading(1980, 3201, 40, 300.0), GpuReading(1965, 3201, 44, 310.0), discarded=10)


@pytest.fixture(scope="module")
def predicting() -> Setup:
    return prepare(SetupRequest(PROBLEM, DeviceSpec("emulator"), inputs_seed=7))


@pytest.fixture(scope="module")
def measuring(predicting: Setup) -> Setup:
    """The same setup for a GPU; nothing runs on it."""
    return replace(predicting, device=DeviceSpec("cuda"))


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return build(PROBLEM)


@pytest.fixture(scope="module")
def compilation(kernel: Kernel) -> Compilation:
    return Compilation(kernel.config, Status.OK, "", (kernel.source,), (kernel.binary,), {"compile": 0.1})


def measured(setup: Setup) -> Examination:
    """A valid examination of a GPU."""
    (part,) = setup.parts
    samples = tuple(5 + 0.01 * turn for turn in range(part.plan.samples))
    interval = median_interval(samples)
    timing = Timing(
        *(interval.median, interval.low, interval.high, False, part.plan.stopwatch.method, samples, 9.0, "sdpa-flash")
    )
    verdict = Verdict(True, 1e-4, 1e-3, 1e-4, 7, "problem", inputs_seed=part.pool.seed)
    return Examination(Status.OK, "", verdict, timing, {"parity": 0.02, "bench": 0.01})


# -- examinations -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_valid_examinations_pass(predicting: Setup, measuring: Setup, kernel: Kernel) -> None:
    examiner = Examiner(predicting)
    assert examination_objection(predicting, examiner.examine(Candidate((kernel,)))) == ""
    wrong = build(PROBLEM, ("score *= p.scale_log2", "score *= p.scale_log2 * 1.1f"))
    failed = examiner.examine(Candidate((wrong,)))
    assert failed.status is Status.PARITY_FAILED
    assert examination_objection(predicting, failed) == ""
    faulty = examiner.examine(Candidate((build(PROBLEM, ("load(q + d)", "load(q + d + (1ll << 40))")),)))
    assert faulty.status is Status.LAUNCH_FAILED
    assert examination_objection(predicting, faulty) == ""
    assert examination_objection(measuring, measured(measuring)) == ""


def pruned(setup: Setup) -> Examination:
    """A valid examination of a pruned candidate."""
    valid = measured(setup)
    assert valid.timing is not None
    samples = valid.timing.samples_us[:8]
    ends = median_interval(samples)
    timing = replace(
        valid.timing, median_us=ends.median, low_us=ends.low, high_us=ends.high, samples_us=samples, telemetry=SEEN
    )
    return replace(valid, status=Status.PRUNED, reason="at least 18% slower", timing=timing)


def test_a_recording_may_ask_for_few_samples(measuring: Setup) -> None:
    """A recording needs as many samples as its plan says."""
    recording = planned(measuring, samples=12, race=None)
    valid = measured(recording)
    assert examination_objection(recording, valid) == ""
    assert "12 samples" in examination_objection(measuring, valid)
    fewer = planned(recording, samples=11)
    assert "11 samples" in examination_objection(recording, measured(fewer))


def test_a_pruned_candidate_may_have_few_samples(measuring: Setup, predicting: Setup) -> None:
    valid = pruned(measuring)
    assert examination_objection(measuring, valid) == ""
    assert "8 samples" in examination_objection(measuring, replace(valid, status=Status.OK, reason=""))
    assert "pruned without a time" in examination_objection(measuring, replace(valid, timing=None))
    assert "gate was not passed" in examination_objection(measuring, replace(valid, verdict=None))
    assert "not that of its samples" in examination_objection(measuring, timed(median_us=5.01)(valid))
    assert "2 samples" in examination_objection(measuring, timed(samples_us=(5.0, 5.1))(valid))
    whole = planned(measuring, race=None)
    assert "racing is off" in examination_objection(whole, valid)
    assert "racing is off" in examination_objection(predicting, timed(predicted=True)(valid))


def test_an_energy_is_positive_or_unknown() -> None:
    assert [energy_objection(value) for value in (None, 1412.0)] == ["", ""]
    assert all("impossible energy" in energy_objection(value) for value in (0.0, -3.0, NAN, INF))


def planned(setup: Setup, **changes: object) -> Setup:
    """A setup with another timing plan."""
    (part,) = setup.parts
    return replace(setup, parts=(replace(part, plan=replace(part.plan, **changes)),))  # type: ignore[arg-type]


def timed(**changes: object) -> Callable[[Examination], Examination]:
    return lambda valid: replace(valid, timing=replace(valid.timing, **changes))  # type: ignore[type-var]


def judged(**changes: object) -> Callable[[Examination], Examination]:
    return lambda valid: replace(valid, verdict=replace(valid.verdict, **changes))  # type: ignore[type-var]


def said(**changes: object) -> Callable[[Examination], Examination]:
    return lambda valid: replace(valid, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "observed"),
    [
        (timed(median_us=0.001), "impossible times"),
        (timed(median_us=NAN), "impossible times"),
        (timed(low_us=-1.0), "impossible times"),
        (timed(high_us=INF), "impossible times"),
        (timed(baseline_us=0.0), "impossible times"),
        (timed(samples_us=(1.0,) * 40), "not that of its samples"),
        (timed(samples_us=(5.0, 5.1)), "2 samples"),
        (timed(samples_us=(NAN,) * 40), "impossible times"),
        (timed(predicted=True), "a predicted time"),
        (timed(method="guessed"), "by 'guessed'"),
        (judged(passed=False, reason="wrong"), "gate was not passed"),
        (judged(inputs_seed=8), "seed 8, not 7"),
        (judged(cases=0), "after 0 cases"),
        (judged(max_error=NAN), "passed with error nan"),
        (judged(max_error=1.0), "passed with error 1.0"),
        (judged(tolerance=INF), "passed with error"),
        (said(verdict=None), "gate was not passed"),
        (said(timing=None), "ok without a time"),
        (said(reason="well"), "ok with the reason 'well'"),
        (said(status=Status.LAUNCH_FAILED, reason="x"), "launch_failed with a time"),
        (said(status=Status.LAUNCH_FAILED, timing=None), "launch_failed with the reason ''"),
        (said(status=Status.PARITY_FAILED, reason="x", timing=None), "not by the gate's verdict"),
        (said(status=Status.DUPLICATE), "does not end as duplicate"),
        (said(stage_seconds={"parity": NAN}), "impossible seconds"),
        (said(stage_seconds={"parity": -1.0}), "impossible seconds"),
    ],
)
def test_impossible_examinations_are_refused(
    measuring: Setup, change: Callable[[Examination], Examination], observed: str
) -> None:
    assert observed in examination_objection(measuring, change(measured(measuring)))


def test_a_measured_time_is_no_prediction(predicting: Setup) -> None:
    assert "a measured time" in examination_objection(predicting, measured(predicting))


# -- compilations -----------------------------------------------------------------------------------------------------


def test_valid_compilations_pass(compilation: Compilation) -> None:
    assert compilation_objection(compilation.config, "sm_89", compilation) == ""
    failed = Compilation(compilation.config, Status.COMPILE_FAILED, "line 3: error", compilation.sources)
    assert compilation_objection(compilation.config, "sm_89", failed) == ""


OTHER = Config.of("other", {})


def with_registers(binary: Binary, registers: int) -> Binary:
    return replace(binary, resources=replace(binary.resources, registers=registers))


@pytest.mark.parametrize(
    ("change", "observed"),
    [
        (lambda it: replace(it, config=OTHER), "is about"),
        (lambda it: replace(it, sources=(replace(it.sources[0], config=OTHER),)), "is about"),
        (lambda it: replace(it, status=Status.CRASHED), "does not end as crashed"),
        (lambda it: replace(it, status=Status.COMPILE_FAILED), "compile_failed with the reason ''"),
        (lambda it: replace(it, sources=()), "without a source"),
        (lambda it: replace(it, binaries=()), "without a source or a binary"),
        (
            lambda it: replace(it, binaries=(replace(it.binaries[0], arch="sm_90a"),)),
            "a binary for sm_90a, not for sm_89",
        ),
        (lambda it: replace(it, binaries=(replace(it.binaries[0], code_hash=""),)), "without code"),
        (
            lambda it: replace(it, binaries=(with_registers(it.binaries[0], -1),)),
            "negative resources",
        ),
        (lambda it: replace(it, stage_seconds={"compile": INF}), "impossible seconds"),
    ],
)
def test_impossible_compilations_are_refused(
    compilation: Compilation, change: Callable[[Compilation], Compilation], observed: str
) -> None:
    assert observed in compilation_objection(compilation.config, "sm_89", change(compilation))


# -- duels ------------------------------------------------------------------------------------------------------------


def test_a_duel_is_judged_again(measuring: Setup, predicting: Setup) -> None:
    ours, theirs = [4.0 + 0.01 * turn for turn in range(20)], [5.0] * 20
    duel = judge_duel(ours, theirs, measuring.threshold)
    assert duel.accepted
    assert duel_objection(measuring, duel) == ""
    assert duel_objection(measuring, replace(duel, telemetry=SEEN)) == ""
    lost = judge_duel(theirs, ours, measuring.threshold)
    assert "does not follow" in duel_objection(measuring, replace(lost, accepted=True))
    assert "does not follow" in duel_objection(measuring, replace(duel, threshold=0.5))
    assert "unequal" in duel_objection(measuring, replace(duel, champion_us=(5.0,) * 19))
    assert "impossible times" in duel_objection(measuring, replace(duel, champion_us=(NAN,) * 20))
    assert "pairs" in duel_objection(measuring, judge_predictions(4.0, 5.0))
    assert duel_objection(predicting, judge_predictions(4.0, 5.0, predicting.threshold)) == ""
    assert "more than one pair" in duel_objection(predicting, duel)
