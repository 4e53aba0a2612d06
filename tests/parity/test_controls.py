"""Controls of the gate: bit repeatability, replays as timed, and the no-op control."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from evoengine.bench.roofline_floor import floor_us, impossible
from evoengine.costmodel.device import EmulatorDevice
from evoengine.errors import DefectError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.model import Problem, Timing
from evoengine.parity.controls.noop_control import NoOpControl
from evoengine.parity.gate import REPEATED, run_gate
from evoengine.parity.inputs.pool import draw_cases
from evoengine.target import get_target
from tests.device.scalar_kernel import build
from tests.parity.numpy_kernel import NumPyKernel
from tests.tma_rows.family import kernel_of

PROBLEM = Problem(1, 2, 40, 16, lse=True)
CASES = draw_cases(PROBLEM, 1)


class Unrepeatable(NumPyKernel):
    """Kernel within tolerance whose outputs differ in one bit from the given call on."""

    def __init__(self, first: int, what: str) -> None:
        super().__init__()
        self._left = first
        self._what = what

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        output = super().attention(inputs)
        self._left -= 1
        if self._left >= 0:
            return output
        if self._what == "o":
            o = output.o.copy()
            o[-1, -1, -1, -1] ^= 1
            return replace(output, o=o)
        assert output.lse is not None
        return replace(output, lse=np.nextafter(output.lse, np.float32(np.inf)))


@pytest.mark.parametrize(("what", "reason"), [("o", "other bits in 1 of"), ("lse", "another log-sum-exp")])
def test_a_bit_that_changes_from_run_to_run_fails(what: str, reason: str) -> None:
    verdict = run_gate(Unrepeatable(REPEATED + 1, what), CASES)
    assert not verdict.passed
    assert reason in verdict.reason
    assert verdict.worst_case == CASES[REPEATED].name
    assert run_gate(Unrepeatable(len(CASES) + 1, what), CASES).passed


class OnlyOverPoison(NumPyKernel):
    """Kernel that leaves everything but poison as it is."""

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        return super().attention(inputs) if before is None else before


def test_a_kernel_that_writes_only_over_poison_fails() -> None:
    verdict = run_gate(OnlyOverPoison(), CASES)
    assert verdict.worst_case == CASES[REPEATED].name
    assert "other bits" in verdict.reason
    other = NumPyKernel().attention(CASES[-1].inputs)
    other.o[:] = other.o[:, ::-1].copy()
    assert run_gate(OnlyOverPoison(), CASES[-1:]).passed
    assert not run_gate(OnlyOverPoison(), CASES[-1:], before=other).passed


def test_a_replay_must_have_the_same_bits() -> None:
    case = CASES[-1]
    right = NumPyKernel().attention(case.inputs)
    assert run_gate(NumPyKernel(), (case,), replays=(right,)).passed
    other = Unrepeatable(0, "o").attention(case.inputs)
    verdict = run_gate(NumPyKernel(), (case,), replays=(other,))
    assert not verdict.passed
    assert re.search(rf"{case.name}: .*other bits in 1 of", verdict.reason)


def test_a_no_op_fails_a_working_gate() -> None:
    device = EmulatorDevice(get_target("l4"))
    problem = replace(PROBLEM, lse=False)
    kernel = build(problem, merge="steps")  # two launches, both replaced by no-ops
    saboteur = NoOpControl()
    saboteur.control(device, kernel, CASES[:1])
    with pytest.raises(DefectError, match="does nothing"):
        saboteur.control(device, kernel, ())


def test_a_no_op_has_the_arguments_of_a_kernel_with_tensor_maps() -> None:
    problem = Problem(1, 2, 40, 64)
    NoOpControl().control(EmulatorDevice(get_target("h200")), kernel_of(problem), draw_cases(problem, 1)[:1])


def test_no_measured_time_is_below_the_floor() -> None:
    target = get_target("l4")
    floor = floor_us(Problem(1, 8, 512, 64), target)
    assert floor == pytest.approx(4 * 8 * 512 * 512 * 64 / (target.fp16_tensor_tflops * 1e6))
    assert floor_us(Problem(1, 8, 512, 64, causal=True), target) == pytest.approx(floor * 513 / 1024)
    for share, predicted, wrong in ((1.1, False, False), (0.9, False, True), (0.9, True, False)):
        us = share * floor
        timing = Timing(us, us, us, predicted=predicted, method="m")
        assert bool(impossible(timing, Problem(1, 8, 512, 64), target)) == wrong
