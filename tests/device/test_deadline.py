"""When a kernel has hung: soon enough to go on with the search, and never while a valid one runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.emulation.limits import launch_limit_s
from evoengine.device.contract import random_inputs
from evoengine.device.cuda.deadline import PATIENCE_S, call_limit_s, done_within
from evoengine.errors import CandidateTimeoutError
from evoengine.model import NAMED_PROBLEMS, Problem
from evoengine.target import TARGETS, Target, get_target
from tests.device.scalar_kernel import build

SCALAR_LANES = 0.05
"""Share of its fp32 lanes that a kernel without tensor cores is sure to use."""


def clock(monkeypatch: pytest.MonkeyPatch, times: Iterator[float]) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))


def answers(*values: bool) -> Callable[[], bool]:
    left = iter(values)
    return lambda: next(left)


def test_finished_work_is_accepted_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, iter((0.0, 0.1, 0.2)))
    assert done_within(answers(False, False, True), 1.0)


def test_a_suspended_process_polls_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, iter((0.0, 99.0)))
    assert done_within(answers(False, True), 1.0)


def test_endless_work_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, iter((0.0, 0.5, 1.1)))
    assert not done_within(answers(False, False, False), 1.0)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("problem", NAMED_PROBLEMS.values(), ids=NAMED_PROBLEMS)
def test_the_deadline_allows_kernels_without_tensor_cores_and_detects_a_hang_within_a_second(
    problem: Problem, target: Target
) -> None:
    fp32_flops = target.sms * target.fp32_lanes_per_sm * 2 * target.boost_clock_mhz * 1e6
    slow_s = problem.flops / (SCALAR_LANES * fp32_flops)
    assert slow_s < call_limit_s(problem, target) < 1.0
    assert call_limit_s(problem, target, 20) >= 20 * (call_limit_s(problem, target) - PATIENCE_S)


def test_a_long_problem_has_more_time() -> None:
    target, long = get_target("l4"), Problem(4, 16, 8192, 128)
    compute_s = 4 * 4 * 16 * 8192**2 * 128 / 121e12
    assert call_limit_s(long, target) > 100 * compute_s
    one_row = Problem(1, 1, 1, 128, seq_kv=2**22)
    single_cta_s = one_row.min_bytes / (target.dram_gbps * 1e9 / target.sms)
    assert call_limit_s(one_row, target) > single_cta_s


def test_a_measured_baseline_shortens_the_time_of_a_long_problem_and_of_no_other() -> None:
    target = get_target("h200")
    huge, mission = Problem(4, 16, 32768, 128), NAMED_PROBLEMS["mission"]
    compute_us = 4 * 4 * 16 * 32768**2 * 128 / 989e6
    baseline_us = 1.5 * compute_us
    slow_s = 55 * baseline_us * 1e-6  # the slowest config of a whole sample
    assert 5 * slow_s < call_limit_s(huge, target, baseline_us=baseline_us) < call_limit_s(huge, target) / 2
    assert call_limit_s(mission, target, 20, baseline_us=10.0) == call_limit_s(mission, target, 20)


class WorkClock:
    """CPU seconds of a thread that works a tenth of a second between any two looks at the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.1
        return self.now_s


def test_an_emulated_kernel_that_never_ends_is_given_up_after_seconds_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(4, 4, 32, 16)
    endless = "    while (((const volatile u16*)q)[0] != 1 << 17) {}\n    const int tiles"
    kernel = build(problem, ("    const int tiles", endless))
    work = WorkClock()
    monkeypatch.setattr(time, "thread_time", work)
    with pytest.raises(CandidateTimeoutError, match="deadline"):
        EmulatorDevice(get_target("l4")).load(kernel).attention(random_inputs(problem, 0))
    assert launch_limit_s(problem) < work.now_s < launch_limit_s(problem, 2**15, lanes=True) + 0.3
    assert launch_limit_s(problem) < 10
    decode = Problem(1, 9, 3, 64, kv_heads=3, seq_kv=2048)
    assert launch_limit_s(decode) > 35, "a thread per row needs as long for a few rows as for many"
    assert launch_limit_s(replace(decode, seq_kv=10**5)) < 100
    assert launch_limit_s(problem, 132 * 384) > launch_limit_s(problem) + 4, "all CTAs of a persistent grid start"
    assert launch_limit_s(problem, 10**9) < 20
