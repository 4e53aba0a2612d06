"""Deadlines follow from the work, the roofline and the baseline."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest

from evoengine.bench.baseline import Baseline
from evoengine.bench.timer import plan_for
from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.emulation.limits import launch_limit_s
from evoengine.device.tools.sanitizer import TOOL_LIMIT_S
from evoengine.engine.workers.pools import DeviceWorkers
from evoengine.model import DeviceInfo, Problem, Status, Timing
from evoengine.search.candidate.deadlines import examination_limit_s, sanitizing_limit_s
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner
from evoengine.search.candidate.jobs import Examine
from evoengine.search.candidate.results import Candidate, Examination
from evoengine.search.candidate.setup import Setup, SetupRequest, prepare
from evoengine.target import get_target
from tests.device.scalar_kernel import build

H200 = get_target("h200")
PROBLEM = Problem(1, 2, 64, 64)
HUGE = Problem(4, 16, 32768, 128)


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(SetupRequest(PROBLEM, DeviceSpec("cuda"), inputs_seed=7))


@pytest.fixture(scope="module")
def long(setup: Setup) -> Setup:
    """The same setup for a problem of 35 TFLOP, in the parts that deadlines read."""
    (part,) = setup.parts
    case = part.pool.problem
    huge = replace(case, inputs=replace(case.inputs, problem=HUGE))
    part = replace(part, problem=HUGE, pool=replace(part.pool, problem=huge), plan=plan_for(HUGE))
    return replace(setup, parts=(part,))


def test_a_measured_baseline_shortens_the_limit_of_a_long_problem(setup: Setup, long: Setup) -> None:
    without, by_baseline = examination_limit_s(long, H200), examination_limit_s(long, H200, 50_000.0)
    assert by_baseline < without / 2
    assert examination_limit_s(setup, H200, 10.0) <= examination_limit_s(setup, H200) < 10.0


def test_a_sanitized_champion_has_time_for_the_emulator_too(setup: Setup) -> None:
    together = examination_limit_s(setup, H200) + 2 * TOOL_LIMIT_S
    assert sanitizing_limit_s(setup, H200) >= together + launch_limit_s(PROBLEM)


class RecordingDevice(EmulatorDevice):
    """Claims to measure, and records the baseline times that it is given."""

    def __init__(self) -> None:
        super().__init__(H200)
        self.paces_us: dict[Problem, float] = {}

    @property
    def info(self) -> DeviceInfo:
        return replace(super().info, predicted=False)

    def learn_pace(self, problem: Problem, baseline_us: float) -> None:
        self.paces_us[problem] = baseline_us


class FixedBaseline:
    """A baseline that takes 9 us."""

    def sample_us(self) -> float:
        return 9.0

    def close(self) -> None:
        pass


def test_a_device_gets_the_baseline_time_first(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "evoengine.bench.benchmark.open_baseline", lambda *_: Baseline("sdpa-any", FixedBaseline(), 20, ())
    )
    device = RecordingDevice()
    examiner = Examiner(setup, device)
    assert examiner.open("") == "sdpa-any"
    assert device.paces_us == {PROBLEM: 9.0}
    examiner.close()


def test_the_first_known_baseline_time_shortens_later_deadlines(long: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[tuple[float, Future[Examination]]] = []

    class Recorded:
        def __init__(self, *_args: object, **_options: object) -> None:
            pass

        def submit(self, *_args: object, timeout_s: float, **_options: object) -> Future[Examination]:
            submitted.append((timeout_s, Future()))
            return submitted[-1][1]

    monkeypatch.setattr("evoengine.engine.workers.pools.WorkerPool", Recorded)
    workers = DeviceWorkers(long, (), H200)
    job = Examine(Candidate((build(PROBLEM),)))
    workers.submit(job)
    submitted[0][1].set_result(Examination(Status.PARITY_FAILED, "wrong"))
    workers.submit(job)
    timing = Timing(1.0, 1.0, 1.0, predicted=False, method="graph-warm", baseline_us=50_000.0)
    submitted[1][1].set_result(Examination(Status.OK, timing=timing))
    workers.submit(job)
    limits_s = [limit_s for limit_s, _ in submitted]
    assert limits_s == [examination_limit_s(long, H200)] * 2 + [examination_limit_s(long, H200, 50_000.0)]
    assert limits_s[2] < limits_s[0] / 2
