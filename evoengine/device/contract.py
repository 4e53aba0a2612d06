"""The contract of a device as a test class: the tests of a device inherit it and provide the fixtures.

The class uses plain asserts, so that pytest is needed only to run it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Final, Literal, Protocol

import numpy as np

from evoengine.device.protocols import Device, LoadedKernel, PredictedKernel, StopwatchOptions, TimedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.call import LSE_POISON_BITS, AttentionInputs
from evoengine.kernel.memory_layout import POISON_BITS, AxisOrder, CallLayout, TensorLayout
from evoengine.kernel.records import Kernel
from evoengine.model import DType, Problem

GAPPED: Final = CallLayout(
    q=TensorLayout("bshd", row_gap=64, batch_gap=24),
    k=TensorLayout("bhsd", row_gap=8, head_gap=160, batch_gap=8),
    v=TensorLayout("bshd", row_gap=16, head_gap=8, batch_gap=40),
    o=TensorLayout("bhsd", row_gap=24, head_gap=16, batch_gap=56),
)
"""Four different layouts with gaps of every kind."""

Broken = Literal[
    "unwritten-row",
    "writes-past-the-end",
    "reads-far-outside",
    "writes-an-input",
    "unwritten-lse",
    "writes-past-the-lse",
    "writes-the-sink",
    "writes-the-offsets",
    "leaves-a-counter",
    "writes-past-the-workspace",
    "reads-what-nobody-left",
    "reads-what-the-call-before-left",
]
Merge = Literal["none", "steps", "counters"]
"""How partial results of a row are merged when its keys are split among CTAs: by a second launch or by the last CTA."""


class KernelMaker(Protocol):
    """Builds attention kernels for a problem's head_dim, dtype and features."""

    def __call__(self, problem: Problem, broken: Broken | None, merge: Merge = "none") -> Kernel:
        """Builds a correct kernel, or one with a named fault."""


class DeviceContract:
    """Tests of a device. A subclass provides the fixtures ``device`` and ``make_kernel`` (a :class:`KernelMaker`)."""

    PROBLEM = Problem(2, 4, 37, 16, kv_heads=2, seq_kv=45)
    RICH = replace(PROBLEM, window_left=20, window_right=9, softcap=2.0, sink=True, lse=True)
    """Every feature at once except packed sequences."""
    PACKED = replace(
        RICH, batch=4, seq_q=37, seq_kv=70, lengths_q=(5, 37, 0, 20), lengths_kv=(9, 45, 3, 70), window_left=None
    )

    def test_it_describes_itself(self, device: Device) -> None:
        """Kind, name and architecture are known, the target has SMs, and the device is healthy."""
        assert device.info.kind
        assert device.info.name
        assert device.info.arch.startswith("sm_")
        assert device.target.sms > 0
        assert device.healthy

    def test_a_good_kernel_computes_attention(self, device: Device, make_kernel: KernelMaker) -> None:
        """Every dtype, mask and layout, and a softmax scale of the call."""
        for dtype in DType:
            for causal in (False, True):
                problem = replace(self.PROBLEM, dtype=dtype, causal=causal)
                loaded = device.load(make_kernel(problem, None))
                for layout in ("bhsd", "bshd", GAPPED):
                    assert_attention(loaded, random_inputs(problem, 1, layout, None if layout == "bhsd" else -0.4))
                loaded.close()

    def test_every_feature_alone(self, device: Device, make_kernel: KernelMaker) -> None:
        """Windows, softcap, sink, log-sum-exp, packed sequences."""
        bare = replace(self.PROBLEM, batch=3, lengths_q=(7, 37, 30), lengths_kv=(45, 0, 12))
        problems = (
            replace(self.PROBLEM, window_left=11, window_right=4),
            replace(self.PROBLEM, window_left=6, causal=True),
            replace(self.PROBLEM, softcap=1.5),
            replace(self.PROBLEM, sink=True),
            replace(self.PROBLEM, lse=True),
            bare,
        )
        for problem in problems:
            loaded = device.load(make_kernel(problem, None))
            for layout in ("bhsd", "bshd"):
                assert_attention(loaded, random_inputs(problem, 8, layout))

    def test_all_features_at_once(self, device: Device, make_kernel: KernelMaker) -> None:
        """In one launch, in two, and with counters; a second call gives the same result as the first."""
        merges: tuple[Merge, ...] = ("none", "steps", "counters")
        for problem in (self.RICH, self.PACKED):
            for merge in merges:
                loaded = device.load(make_kernel(problem, None, merge))
                for seed, scale in ((9, None), (10, -0.4)):
                    assert_attention(loaded, random_inputs(problem, seed, "bshd", scale))

    def test_a_row_without_keys(self, device: Device, make_kernel: KernelMaker) -> None:
        """O is zero and the log-sum-exp -inf; with a sink it is the sink's logit."""
        for sink in (False, True):
            problem = Problem(1, 2, 9, 16, seq_kv=4, causal=True, sink=sink, lse=True)
            inputs = random_inputs(problem, 11)
            output = device.load(make_kernel(problem, None)).attention(inputs)
            assert output.lse is not None
            dead = output.lse[0, :, :5]
            assert not output.o[:, :, :5].any()
            want = np.full(2, -np.inf) if inputs.sink is None else inputs.sink
            np.testing.assert_allclose(dead, np.broadcast_to(want[:, None], dead.shape), rtol=1e-5)

    def test_one_binary_serves_other_shapes(self, device: Device, make_kernel: KernelMaker) -> None:
        """The launch follows the inputs, not the problem at compile time."""
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
        assert np.array_equal(once.o, twice.o)
        assert np.array_equal(once.o, again.o)

    def test_the_output_is_poisoned(self, device: Device, make_kernel: KernelMaker) -> None:
        """An element that a kernel does not write is NaN, even right after a good kernel wrote the same address."""
        inputs = random_inputs(self.PROBLEM, 4)
        device.load(make_kernel(self.PROBLEM, None)).attention(inputs)
        output = device.load(make_kernel(self.PROBLEM, "unwritten-row")).attention(inputs).o
        assert (output[:, :, -1] == POISON_BITS).all()
        assert (output[:, :, :-1] != POISON_BITS).all()

    def test_the_outputs_hold_what_they_are_given(self, device: Device, make_kernel: KernelMaker) -> None:
        """A good kernel overwrites other results; what a kernel does not write stays."""
        inputs, others = random_inputs(self.RICH, 4), random_inputs(self.RICH, 5)
        loaded = device.load(make_kernel(self.RICH, None))
        want, before = loaded.attention(inputs), loaded.attention(others)
        after = loaded.attention(inputs, before)
        assert np.array_equal(after.o, want.o)
        assert want.lse is not None
        assert after.lse is not None
        assert before.lse is not None
        assert np.array_equal(after.lse, want.lse)
        unwritten = device.load(make_kernel(self.RICH, "unwritten-lse")).attention(inputs, before).lse
        assert unwritten is not None
        assert np.array_equal(unwritten[:, :, 0], before.lse[:, :, 0])

    def test_the_log_sum_exp_is_poisoned(self, device: Device, make_kernel: KernelMaker) -> None:
        """A row that a kernel does not write is NaN in the log-sum-exp too."""
        inputs = random_inputs(self.RICH, 4)
        device.load(make_kernel(self.RICH, None)).attention(inputs)
        lse = device.load(make_kernel(self.RICH, "unwritten-lse")).attention(inputs).lse
        assert lse is not None
        assert (lse.view(np.uint32)[:, :, 0] == LSE_POISON_BITS).all()
        assert np.isfinite(lse[:, :, 1:]).all()

    def test_the_workspace_is_poisoned(self, device: Device, make_kernel: KernelMaker) -> None:
        """A read of unwritten workspace gives NaN or an error, even right after a good kernel wrote there."""
        inputs = random_inputs(self.PROBLEM, 4)
        merges: tuple[Merge, ...] = ("steps", "counters")
        for merge in merges:
            device.load(make_kernel(self.PROBLEM, None, merge)).attention(inputs)
            try:
                output = device.load(make_kernel(self.PROBLEM, "reads-what-nobody-left", merge)).attention(inputs)
            except LaunchError:
                continue
            assert np.isnan(_values(output.o, self.PROBLEM.dtype)).all()

    def test_shared_memory_is_poisoned(self, device: Device, make_kernel: KernelMaker) -> None:
        """A read of unwritten shared memory gives NaN or an error, even right after a call that wrote there."""
        loaded = device.load(make_kernel(self.PROBLEM, "reads-what-the-call-before-left"))
        for _ in range(2):
            try:
                output = loaded.attention(random_inputs(self.PROBLEM, 4))
            except LaunchError:
                continue
            assert np.isnan(_values(output.o, self.PROBLEM.dtype)).all()

    def test_two_kernels_are_loaded_at_once(self, device: Device, make_kernel: KernelMaker) -> None:
        """Two loaded kernels do not affect each other."""
        causal = replace(self.PROBLEM, causal=True)
        full_kernel = device.load(make_kernel(self.PROBLEM, None))
        causal_kernel = device.load(make_kernel(causal, None))
        assert_attention(full_kernel, random_inputs(self.PROBLEM, 5))
        assert_attention(causal_kernel, random_inputs(causal, 5))
        assert_attention(full_kernel, random_inputs(self.PROBLEM, 6))

    def test_a_kernel_out_of_bounds_is_a_launch_error(self, device: Device, make_kernel: KernelMaker) -> None:
        """A write near the output or into an input ends in one line; the device stays usable."""
        faults: tuple[Broken, ...] = ("writes-past-the-end", "writes-an-input")
        for fault in faults:
            assert_launch_error(device.load(make_kernel(self.PROBLEM, fault)), random_inputs(self.PROBLEM, 7))
        assert device.healthy
        assert_attention(device.load(make_kernel(self.PROBLEM, None)), random_inputs(self.PROBLEM, 7))

    def test_faults_of_features_are_launch_errors(self, device: Device, make_kernel: KernelMaker) -> None:
        """Writes near the log-sum-exp and the workspace, into sink and offsets, and a counter that is not reset."""
        faults: tuple[tuple[Problem, Broken, Merge, str], ...] = (
            (self.RICH, "writes-past-the-lse", "none", "LSE"),
            (self.RICH, "writes-the-sink", "none", "SINK"),
            (self.PACKED, "writes-the-offsets", "none", "CU_SEQLENS_KV"),
            (self.RICH, "writes-past-the-workspace", "steps", "WORKSPACE"),
            (self.RICH, "leaves-a-counter", "counters", "left counter 0 at 3, not 0"),
        )
        for problem, fault, merge, named in faults:
            loaded = device.load(make_kernel(problem, fault, merge))
            assert_launch_error(loaded, random_inputs(problem, 7), named)
        assert device.healthy

    def test_it_predicts_or_measures(self, device: Device, make_kernel: KernelMaker) -> None:
        """A loaded kernel is predicted or timed, according to the device's info."""
        loaded = device.load(make_kernel(self.PROBLEM, None))
        assert isinstance(loaded, LoadedKernel)
        assert isinstance(loaded, PredictedKernel) == device.info.predicted
        assert isinstance(loaded, TimedKernel) != device.info.predicted

    def test_it_counts_what_it_launched(self, device: Device, make_kernel: KernelMaker) -> None:
        """The entries of a call in order, for as many calls as are timed, and nothing else."""
        inputs = random_inputs(self.RICH, 12)
        for merge, entries in (("none", ("evo_attention",)), ("steps", ("evo_attention", "evo_combine"))):
            kernel = make_kernel(self.RICH, None, "steps" if merge == "steps" else "none")
            assert tuple(step.entry for step in kernel.source.launch.steps(self.RICH)) == entries
            assert _launched(device.load(kernel), inputs, 3) == entries * (1 if device.info.predicted else 3)

    def test_closing_twice_is_harmless(self, device: Device, make_kernel: KernelMaker) -> None:
        """Kernels only; devices are closed by their fixture."""
        loaded = device.load(make_kernel(self.PROBLEM, None))
        loaded.close()
        loaded.close()


def _launched(loaded: LoadedKernel, inputs: AttentionInputs, calls: int) -> tuple[str, ...]:
    """Returns the device's count: of one predicted call, or of ``calls`` timed ones, with and without a graph."""
    if isinstance(loaded, PredictedKernel):
        assert loaded.launched == ()
        loaded.attention(inputs)
        return loaded.launched
    assert isinstance(loaded, TimedKernel)
    counts = []
    for options in (StopwatchOptions(calls), StopwatchOptions(calls, cold=True), StopwatchOptions(calls, eager=True)):
        with closing(loaded.stopwatch(inputs, options)) as watch:
            counts.append(watch.launched)
    assert len(set(counts)) == 1, counts
    return counts[0]


def assert_launch_error(loaded: LoadedKernel, inputs: AttentionInputs, part: str = "") -> None:
    """Asserts that the run ends in a LaunchError of one line that contains ``part``."""
    message = ""
    try:
        loaded.attention(inputs)
    except LaunchError as error:
        message = str(error)
    assert message, "the fault was not detected"
    assert "\n" not in message
    assert part in message, message


def random_inputs(
    problem: Problem, seed: int, layout: AxisOrder | CallLayout = "bhsd", scale: float | None = None
) -> AttentionInputs:
    """Standard normal inputs, rounded toward zero in bf16."""
    rng = np.random.default_rng(seed)
    shape_kv = (problem.memory_batch, problem.kv_heads, problem.rows_kv, problem.head_dim)
    shape_q = (problem.memory_batch, problem.heads, problem.rows_q, problem.head_dim)
    values = [rng.standard_normal(shape, np.float32) for shape in (shape_q, shape_kv, shape_kv)]
    if problem.dtype is DType.FP16:
        q, k, v = (value.astype(np.float16).view(np.uint16) for value in values)
    else:
        q, k, v = ((value.view(np.uint32) >> np.uint32(16)).astype(np.uint16) for value in values)
    sink = rng.standard_normal(problem.heads, np.float32) if problem.sink else None
    return AttentionInputs.of(problem, q, k, v, layout, sink, scale)


def assert_attention(loaded: LoadedKernel, inputs: AttentionInputs) -> None:
    """Asserts that output and log-sum-exp match the definition of attention within a few roundings of the dtype."""
    problem = inputs.problem
    want, want_lse = exact_attention(inputs)
    output = loaded.attention(inputs)
    got = _values(output.o, problem.dtype)
    rounding = 2.0**-9 if problem.dtype is DType.FP16 else 2.0**-6
    np.testing.assert_allclose(got, want, rtol=rounding, atol=rounding)
    assert (output.lse is not None) == problem.lse
    if output.lse is not None:
        np.testing.assert_allclose(output.lse, want_lse, rtol=2e-5, atol=2e-5)


def exact_attention(inputs: AttentionInputs) -> tuple[np.ndarray, np.ndarray]:
    """Computes attention by its definition, in float64, one sequence after the other.

    Returns:
        O ``[memory_batch, heads, rows_q, head_dim]`` and the log-sum-exp ``[memory_batch, heads, rows_q]``.
    """
    problem = inputs.problem
    q, k, v = (_values(bits, problem.dtype) for bits in (inputs.q, inputs.k, inputs.v))
    group = problem.heads // problem.kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    o, lse = np.zeros(q.shape), np.zeros(q.shape[:3])
    first_q = first_kv = 0
    for index, (queries, keys) in enumerate(problem.sequences):
        batch = 0 if problem.packed else index
        rows, cols = slice(first_q, first_q + queries), slice(first_kv, first_kv + keys)
        scores = q[batch, :, rows] @ k[batch, :, cols].swapaxes(1, 2) * inputs.softmax_scale
        if problem.softcap:
            scores = problem.softcap * np.tanh(scores / problem.softcap)
        weights = np.where(_visible(problem, queries, keys), np.exp(scores), 0.0)
        total = weights.sum(axis=2)
        if inputs.sink is not None:
            total = total + np.exp(inputs.sink.astype(np.float64))[:, None]
        o[batch, :, rows] = weights @ v[batch, :, cols] / np.where(total > 0, total, 1)[:, :, None]
        with np.errstate(divide="ignore"):
            lse[batch, :, rows] = np.log(total)
        if problem.packed:
            first_q, first_kv = first_q + queries, first_kv + keys
    return o, lse


def _visible(problem: Problem, queries: int, keys: int) -> np.ndarray:
    """Returns ``[queries, keys]``: whether a row attends to a key, with bottom-right alignment."""
    offset = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
    seen = np.ones((queries, keys), bool)
    if problem.causal:
        seen &= offset <= 0
    if problem.window_left is not None:
        seen &= offset >= -problem.window_left
    if problem.window_right is not None:
        seen &= offset <= problem.window_right
    return seen


def _values(bits: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.FP16:
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
