"""What every device must do, as a test class: a device's tests inherit it and make the fixtures.

It needs pytest only where it is run: the class uses plain asserts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from evoengine.device.base import Device, LoadedKernel, PredictedKernel, TimedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.artifact import Kernel
from evoengine.kernel.call import POISON_BITS, AttentionInputs
from evoengine.model import DType, Problem

Broken = Literal["unwritten-row", "writes-past-the-end", "reads-far-outside", "writes-an-input"]
KernelMaker = Callable[[Problem, Broken | None], Kernel]
"""Makes a correct attention kernel for a problem's head_dim, dtype and mask, or one with a named fault."""


class DeviceContract:
    """Inherit it, and provide the fixtures ``device`` and ``make_kernel`` (a :data:`KernelMaker`)."""

    PROBLEM = Problem(2, 4, 37, 16, kv_heads=2, seq_kv=45)

    def test_it_says_what_it_is(self, device: Device) -> None:
        """Kind, name and architecture are known, and the limits fit the architecture's family."""
        assert device.info.kind
        assert device.info.name
        assert device.info.arch.startswith("sm_")
        assert device.target.sms > 0
        assert device.healthy

    def test_a_good_kernel_computes_attention(self, device: Device, make_kernel: KernelMaker) -> None:
        """Every dtype, mask and layout."""
        for dtype in DType:
            for causal in (False, True):
                problem = replace(self.PROBLEM, dtype=dtype, causal=causal)
                loaded = device.load(make_kernel(problem, None))
                for layout in ("bhsd", "bshd"):
                    assert_attention(loaded, random_inputs(problem, 1, layout))
                loaded.close()

    def test_one_binary_serves_other_shapes(self, device: Device, make_kernel: KernelMaker) -> None:
        """The launch follows the inputs, not the problem that was compiled for."""
        loaded = device.load(make_kernel(self.PROBLEM, None))
        for shape in ((1, 1, 1, 16, 1, 1), (1, 2, 130, 16, 2, 33), (3, 1, 5, 16, 1, 64)):
            assert_attention(loaded, random_inputs(Problem(*shape), 2))
        loaded.close()

    def test_runs_repeat_bit_for_bit(self, device: Device, make_kernel: KernelMaker) -> None:
        """The same inputs give the same bits, also on a fresh load."""
        inputs = random_inputs(self.PROBLEM, 3)
        first = device.load(make_kernel(self.PROBLEM, None))
        once, twice = first.attention(inputs), first.attention(inputs)
        again = device.load(make_kernel(self.PROBLEM, None)).attention(inputs)
        assert np.array_equal(once, twice)
        assert np.array_equal(once, again)

    def test_the_output_is_poisoned(self, device: Device, make_kernel: KernelMaker) -> None:
        """What a kernel does not write is NaN, also right after a good kernel wrote the same place."""
        inputs = random_inputs(self.PROBLEM, 4)
        device.load(make_kernel(self.PROBLEM, None)).attention(inputs)
        output = device.load(make_kernel(self.PROBLEM, "unwritten-row")).attention(inputs)
        assert (output[:, :, -1] == POISON_BITS).all()
        assert (output[:, :, :-1] != POISON_BITS).all()

    def test_two_kernels_are_loaded_at_once(self, device: Device, make_kernel: KernelMaker) -> None:
        """Neither takes the other's place."""
        causal = replace(self.PROBLEM, causal=True)
        full_kernel = device.load(make_kernel(self.PROBLEM, None))
        causal_kernel = device.load(make_kernel(causal, None))
        assert_attention(full_kernel, random_inputs(self.PROBLEM, 5))
        assert_attention(causal_kernel, random_inputs(causal, 5))
        assert_attention(full_kernel, random_inputs(self.PROBLEM, 6))

    def test_a_kernel_out_of_bounds_is_a_launch_error(self, device: Device, make_kernel: KernelMaker) -> None:
        """Near its output, and in an input: one line; the device goes on."""
        faults: tuple[Broken, ...] = ("writes-past-the-end", "writes-an-input")
        for fault in faults:
            assert_launch_error(device.load(make_kernel(self.PROBLEM, fault)), random_inputs(self.PROBLEM, 7))
        assert device.healthy
        assert_attention(device.load(make_kernel(self.PROBLEM, None)), random_inputs(self.PROBLEM, 7))

    def test_it_predicts_or_measures(self, device: Device, make_kernel: KernelMaker) -> None:
        """As its info says."""
        loaded = device.load(make_kernel(self.PROBLEM, None))
        assert isinstance(loaded, LoadedKernel)
        assert isinstance(loaded, PredictedKernel) == device.info.predicted
        assert isinstance(loaded, TimedKernel) != device.info.predicted

    def test_closing_twice_is_harmless(self, device: Device, make_kernel: KernelMaker) -> None:
        """For kernels; devices are closed by their fixture."""
        loaded = device.load(make_kernel(self.PROBLEM, None))
        loaded.close()
        loaded.close()


def assert_launch_error(loaded: LoadedKernel, inputs: AttentionInputs) -> None:
    """The run must end in a LaunchError of one line."""
    told = ""
    try:
        loaded.attention(inputs)
    except LaunchError as error:
        told = str(error)
    assert told, "the fault went unnoticed"
    assert "\n" not in told


def random_inputs(problem: Problem, seed: int, layout: Literal["bhsd", "bshd"] = "bhsd") -> AttentionInputs:
    """Standard normal inputs, rounded toward zero in bf16."""
    rng = np.random.default_rng(seed)
    shape_kv = (problem.batch, problem.kv_heads, problem.seq_kv, problem.head_dim)
    shape_q = (problem.batch, problem.heads, problem.seq_q, problem.head_dim)
    values = [rng.standard_normal(shape, np.float32) for shape in (shape_q, shape_kv, shape_kv)]
    if problem.dtype is DType.FP16:
        q, k, v = (value.astype(np.float16).view(np.uint16) for value in values)
    else:
        q, k, v = ((value.view(np.uint32) >> np.uint32(16)).astype(np.uint16) for value in values)
    return AttentionInputs.of(problem, q, k, v, layout)


def assert_attention(loaded: LoadedKernel, inputs: AttentionInputs) -> None:
    """The output must be attention by its definition, to a few roundings of the dtype."""
    problem = inputs.problem
    q, k, v = (_values(bits, problem.dtype) for bits in (inputs.q, inputs.k, inputs.v))
    group = problem.heads // problem.kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = q @ k.swapaxes(2, 3) * problem.softmax_scale
    if problem.causal:
        rows, keys = np.arange(problem.seq_q)[:, None], np.arange(problem.seq_kv)
        scores = np.where(keys <= rows + problem.seq_kv - problem.seq_q, scores, -np.inf)
    weights = np.exp(scores)
    total = weights.sum(axis=3, keepdims=True)
    want = weights @ v / np.where(total > 0, total, 1)
    got = _values(loaded.attention(inputs), problem.dtype)
    rounding = 2.0**-9 if problem.dtype is DType.FP16 else 2.0**-6
    np.testing.assert_allclose(got, want, rtol=rounding, atol=rounding)


def _values(bits: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.FP16:
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
