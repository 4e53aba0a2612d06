"""float64 reference compared with loops and PyTorch; same-precision reference; row samples."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.memory_layout import CallLayout
from evoengine.model import DType, Problem
from evoengine.parity.float_bits import from_bits, is_finite, largest_finite, round_to, smallest, to_bits
from evoengine.parity.inputs.profiles import PROFILES, make_inputs
from evoengine.parity.reference.bias import bias_tests, largest_bias
from evoengine.parity.reference.bounds import l2_norms, output_bounds, rounding_atol
from evoengine.parity.reference.fp64_attention import Truth, attention_fp64
from evoengine.parity.reference.row_sample import Sample, choose_sample, keyless_rows, spans, whole
from evoengine.parity.reference.sdpa_reference import attention_same_precision

PLAIN = [
    Problem(2, 4, 37, 16, kv_heads=2, seq_kv=83),
    Problem(1, 2, 37, 32, seq_kv=83, causal=True),
    Problem(1, 2, 83, 16, seq_kv=37, causal=True, dtype=DType.BF16),
    Problem(1, 1, 1, 8),
]

PACKED = Problem(
    4, 2, 6, 8, seq_kv=9, kv_heads=1, lengths_q=(3, 0, 6, 2), lengths_kv=(9, 4, 5, 0), window_left=3, sink=True
)

SEVERAL = Problem(3, 4, 200, 16, seq_kv=90, kv_heads=2, causal=True)
LONG_PACKED = replace(PACKED, seq_q=60, lengths_q=(30, 0, 60, 2))

FEATURES = [
    Problem(1, 2, 5, 8, seq_kv=9, window_left=2, window_right=1),
    Problem(1, 2, 9, 8, seq_kv=5, window_left=2, window_right=1),
    Problem(2, 2, 7, 8, window_left=3, causal=True, dtype=DType.BF16),
    Problem(1, 1, 6, 8, window_right=2),
    Problem(1, 2, 5, 16, seq_kv=7, softcap=1.5),
    Problem(1, 4, 5, 8, kv_heads=2, sink=True),
    Problem(1, 2, 6, 8, seq_kv=3, causal=True, sink=True),
    Problem(3, 2, 4, 8, seq_kv=6, lengths_q=(4, 1, 2), lengths_kv=(6, 3, 0), causal=True),
    PACKED,
    Problem(1, 4, 7, 24, kv_heads=1, window_left=4, window_right=2, softcap=3.0, sink=True, dtype=DType.BF16),
]


def by_loops(inputs: AttentionInputs, growth: float = 0.0, octave: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Computes O and the log-sum-exp from the definition in ``Problem``, one key at a time.

    Args:
        inputs: Inputs of the call.
        growth: Relative error of the softmax scale.
        octave: Relative error of a weight per unit of its exponent's distance from an integer.
    """
    problem = inputs.problem
    q, k, v = (from_bits(bits, problem.dtype) for bits in (inputs.q, inputs.k, inputs.v))
    o, lse = np.zeros(inputs.output_shape), np.full(inputs.lse_shape, -np.inf)
    q_start = k_start = 0
    for sequence, (queries, keys) in enumerate(problem.sequences):
        at = 0 if problem.packed else sequence
        for head in range(problem.heads):
            kv_head = head // (problem.heads // problem.kv_heads)
            for row in range(queries):
                logits, values = [], []
                for key in range(keys):
                    distance = key - (row + keys - queries)
                    right = 0 if problem.causal else problem.window_right
                    if right is not None and distance > right:
                        continue
                    if problem.window_left is not None and -distance > problem.window_left:
                        continue
                    products = [
                        a * b for a, b in zip(q[at, head, q_start + row], k[at, kv_head, k_start + key], strict=True)
                    ]
                    logit = math.fsum(products) * inputs.softmax_scale * (1 + growth)
                    logits.append(problem.softcap * math.tanh(logit / problem.softcap) if problem.softcap else logit)
                    values.append(v[at, kv_head, k_start + key])
                octaves = [(logit - max(logits)) / math.log(2) for logit in logits]
                factors = [1 + octave * (exponent - round(exponent)) for exponent in octaves]
                if inputs.sink is not None:
                    factors.append(1.0)
                    logits.append(float(inputs.sink[head]))
                    values.append(np.zeros(problem.head_dim))
                if not logits:
                    continue
                top = max(logits)
                weights = [factor * math.exp(logit - top) for logit, factor in zip(logits, factors, strict=True)]
                total = math.fsum(weights)
                o[at, head, q_start + row] = sum(w * value for w, value in zip(weights, values, strict=True)) / total
                lse[at, head, q_start + row] = top + math.log(total)
        if problem.packed:
            q_start, k_start = q_start + queries, k_start + keys
    return o, lse


def spread(problem: Problem, sample: Sample, values: np.ndarray) -> np.ndarray:
    """Scatters values of sampled rows to their positions in memory; NaN elsewhere."""
    out = np.full((problem.memory_batch, problem.heads, problem.rows_q, *values.shape[1:]), np.nan)
    out[sample.batch, sample.head, sample.row] = values
    return out


def truth_of(inputs: AttentionInputs) -> Truth:
    return attention_fp64(inputs, whole(inputs.problem))


@pytest.mark.parametrize("problem", FEATURES, ids=lambda problem: problem.key)
@pytest.mark.parametrize(("profile", "scale"), [("normal", None), ("peaky", -0.3), ("huge", 0.02)])
def test_fp64_agrees_with_loops(problem: Problem, profile: str, scale: float | None) -> None:
    inputs = make_inputs(problem, profile, seed=1, layout=CallLayout.dense("bshd"), scale=scale)
    o, lse = by_loops(inputs)
    sample = whole(problem)
    truth = attention_fp64(inputs, sample)
    scale = np.abs(o).max()
    np.testing.assert_allclose(spread(problem, sample, truth.o), o, rtol=1e-11, atol=1e-13 * scale)
    np.testing.assert_allclose(spread(problem, sample, truth.lse), lse, rtol=1e-12, atol=1e-12)
    assert np.array_equal(keyless_rows(problem), np.isneginf(by_loops(_without_sink(inputs))[1][:, 0]))


@pytest.mark.parametrize("problem", FEATURES, ids=lambda problem: problem.key)
def test_the_directions_of_a_bias_are_derivatives(problem: Problem) -> None:
    inputs, sample = make_inputs(problem, "normal", seed=1), whole(problem)
    truth, step = attention_fp64(inputs, sample), 1e-5
    for direction, name in ((truth.slope, "growth"), (truth.octave, "octave")):
        ahead, back = (by_loops(inputs, **{name: sign * step})[0] for sign in (1, -1))
        got = spread(problem, sample, direction)
        np.testing.assert_allclose(got, (ahead - back) / (2 * step), rtol=1e-6, atol=1e-8)


def _without_sink(inputs: AttentionInputs) -> AttentionInputs:
    return AttentionInputs.of(replace(inputs.problem, sink=False), inputs.q, inputs.k, inputs.v)


@pytest.mark.parametrize("problem", PLAIN, ids=lambda problem: problem.key)
@pytest.mark.parametrize("profile", PROFILES)
def test_fp64_agrees_with_torch(problem: Problem, profile: str) -> None:
    inputs = make_inputs(problem, profile, seed=1, layout=CallLayout.dense("bshd"))
    q, k, v = (torch.from_numpy(from_bits(bits, problem.dtype)) for bits in (inputs.q, inputs.k, inputs.v))
    mask = torch.ones(problem.seq_q, problem.seq_kv, dtype=torch.bool)
    if problem.causal:
        mask = mask.tril(problem.seq_kv - problem.seq_q)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    want[:, :, ~mask.any(dim=1)] = 0
    got = spread(problem, whole(problem), truth_of(inputs).o)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-11, atol=1e-12 * float(want.abs().max()))


def test_blocks_of_keys_cover_all_keys() -> None:
    problem = Problem(1, 1, 700, 8, seq_kv=9000, window_left=8500, lse=True)
    inputs = make_inputs(problem, "peaky", seed=2)
    truth = truth_of(inputs)
    q, k, v = (torch.from_numpy(from_bits(bits, problem.dtype)) for bits in (inputs.q, inputs.k, inputs.v))
    rows, keys = torch.arange(700)[:, None], torch.arange(9000)
    logits = (q @ k.mT / math.sqrt(8)).masked_fill(keys < rows + 8300 - 8500, -math.inf)
    np.testing.assert_allclose(truth.lse, logits.logsumexp(3).flatten().numpy(), rtol=1e-12)
    weights = logits.softmax(3)
    np.testing.assert_allclose(truth.o, (weights @ v)[0, 0].numpy(), atol=1e-12)
    noise = 0.212 * 2.0**-10 * (weights**2 @ v**2).sqrt()  # rounded weights only, because there is no softcap
    np.testing.assert_allclose(truth.noise, noise[0, 0].numpy(), rtol=1e-9)


@pytest.mark.parametrize("profile", ["peaky", "flat"])
@pytest.mark.parametrize("softcap", [0.0, 4.0])
@pytest.mark.parametrize("dtype", DType)
def test_the_noise_estimates_the_rounding_error(dtype: DType, softcap: float, profile: str) -> None:
    problem = Problem(1, 2, 200, 32, seq_kv=150, softcap=softcap, dtype=dtype, kv_heads=1)
    inputs = make_inputs(problem, profile, seed=3)
    truth = truth_of(inputs)
    q, k, v = (from_bits(bits, dtype) for bits in (inputs.q, inputs.k, inputs.v))
    logits = q @ k.swapaxes(2, 3) / math.sqrt(32)
    rng = np.random.default_rng(4)
    if softcap:
        logits = softcap * np.tanh(logits / softcap)
        logits = logits * (1 + rng.uniform(-(2.0**-11), 2.0**-11, logits.shape))
    weights = np.exp(logits - logits.max(axis=3, keepdims=True) - 0.3)  # so that no weight is exactly one
    o = round_to(weights, dtype) @ v / weights.sum(axis=3, keepdims=True)
    error = (o - truth.o.reshape(o.shape)).reshape(truth.o.shape)
    measured, expected = (float(np.sqrt(np.mean(values**2))) for values in (error, truth.noise))
    assert 0.5 * expected < measured < 1.2 * expected


@pytest.mark.parametrize("problem", [*PLAIN, *FEATURES], ids=lambda problem: problem.key)
@pytest.mark.parametrize("scale", [None, -0.3, 0.0])
def test_same_precision_errors_are_rounding_errors(problem: Problem, scale: float | None) -> None:
    inputs = make_inputs(problem, "normal", seed=2, scale=scale)
    sample = whole(problem)
    held, truth = attention_same_precision(inputs, sample), attention_fp64(inputs, sample)
    error = np.abs(held - truth.o).max()
    step = 2.0**-10 if problem.dtype is DType.FP16 else 2.0**-7
    assert error < 8 * step
    assert error > 0 or problem.seq_kv == 1 or scale == 0
    assert np.array_equal(held, round_to(held, problem.dtype))
    keyless = keyless_rows(problem)[sample.batch, sample.row]
    assert (held[keyless] == 0).all()


@pytest.mark.parametrize("sink", [20.0, 60.0, 87.0, 88.0, 95.0, 100.0])
def test_a_kernel_may_flush_what_an_exact_cpu_keeps(sink: float) -> None:
    """Weights near 2^-126 of the sink's, with bf16 values that make results of them: another CPU's SDPA keeps them."""
    problem = Problem(1, 4, 3, 64, kv_heads=1, seq_kv=512, window_left=400, causal=True, sink=True, dtype=DType.BF16)
    inputs = make_inputs(problem, "huge", 5, sinks=(sink,), scale=0.0435)
    sample = choose_sample(problem, 0)
    truth = attention_fp64(inputs, sample)
    exact = round_to(truth.o, problem.dtype)
    output = flushed_output(inputs)[0][sample.head, sample.row]
    error = output - truth.o
    bounds = output_bounds(truth, exact, sample, problem.dtype)
    assert (np.maximum.reduceat(np.abs(error).max(axis=1), sample.starts) <= bounds.max_error).all()
    assert (l2_norms(error, sample.starts) <= bounds.l2_error).all()
    tests = bias_tests(inputs, truth, exact, sample)
    assert largest_bias(tests, (output - exact).astype(np.float32), sample.starts).share <= 1
    if sink == 20.0:  # nothing is lost there
        assert (bounds.l2_error < bounds.l2_size / 8).all()
        assert (tests[2].precision > 0).any()


def flushed_output(inputs: AttentionInputs) -> np.ndarray:
    """Computes O ``[1, heads, rows, head_dim]``; weights relative to the largest, and results, below 2^-126 are 0."""
    problem = inputs.problem
    q, k, v = (from_bits(bits, problem.dtype)[0] for bits in (inputs.q, inputs.k, inputs.v))
    first, end = spans(problem, problem.seq_q, problem.seq_kv, np.arange(problem.seq_q))
    keys = np.arange(problem.seq_kv)
    hidden = (keys < first[:, None]) | (keys >= end[:, None])
    logits = np.where(hidden, -np.inf, q @ k[0].T * inputs.softmax_scale)
    assert inputs.sink is not None
    sinks = inputs.sink[:, None, None].astype(np.float64)
    top = np.maximum(logits.max(axis=2, keepdims=True), sinks)
    weights = np.exp(logits - top)
    weights[weights < 2.0**-126] = 0.0
    output = round_to(weights @ v[0] / (weights.sum(axis=2, keepdims=True) + np.exp(sinks - top)), problem.dtype)
    output[np.abs(output) < 2.0**-126] = 0.0
    return output[None]


def test_a_sample_is_seeded_and_contains_first_and_last_rows() -> None:
    problem = Problem(8, 8, 4000, 64, kv_heads=4, seq_kv=3000, causal=True)
    sample = choose_sample(problem, 5, full_flops=10**8, full_kv_elements=10**6)
    pairs = [(block.sequence, block.kv_head) for block in sample.blocks]
    assert 4 <= len(pairs) < 32
    assert pairs == sorted(set(pairs))
    assert (pairs[0], pairs[-1]) == ((0, 0), (7, 3))
    for block in sample.blocks:
        assert 16 <= len(block.rows) < 4000
        assert (block.rows[0], block.rows[-1]) == (0, 3999)
        assert (np.diff(block.rows) > 0).all()
    again, other = (choose_sample(problem, seed, 10**8, 10**6) for seed in (5, 6))
    assert np.array_equal(sample.row, again.row)
    assert not np.array_equal(sample.row, other.row)


@pytest.mark.parametrize("problem", [SEVERAL, LONG_PACKED], ids=lambda problem: problem.key)
def test_sampled_rows_are_the_rows_of_the_whole(problem: Problem) -> None:
    inputs = make_inputs(problem, "normal", seed=3)
    sample = choose_sample(problem, 3, full_flops=10, full_kv_elements=10)
    assert len(sample.row) < len(whole(problem).row)
    assert len(sample.starts) == len(sample.blocks) * problem.heads // problem.kv_heads
    everything = spread(problem, whole(problem), truth_of(inputs).o)
    place = (sample.batch, sample.head, sample.row)
    np.testing.assert_allclose(attention_fp64(inputs, sample).o, everything[place], atol=1e-12)
    np.testing.assert_allclose(attention_same_precision(inputs, sample), everything[place], atol=4e-3)


def test_small_problems_are_compared_whole_and_empty_sequences_are_left_out() -> None:
    assert len(choose_sample(Problem(1, 8, 512, 64), 0).row) == 8 * 512
    assert len(choose_sample(PACKED, 0).row) == 2 * 11
    assert [block.sequence for block in choose_sample(PACKED, 0).blocks] == [0, 2, 3]
    assert len(choose_sample(Problem(4, 16, 16384, 128), 0).row) < 1000


def test_many_rows_of_few_keys_are_sampled_in_every_head() -> None:
    problem = Problem(8, 10, 4096, 64, seq_kv=77)
    sample = choose_sample(problem, 0)
    assert len({*zip(sample.batch.tolist(), sample.head.tolist(), strict=True)}) == 80
    assert all(set(block.rows) > {0, 4095} for block in sample.blocks)
    assert 2**18 < len(sample.row) * 64 <= 2**19


@pytest.mark.parametrize("problem", [*FEATURES, *PLAIN], ids=lambda problem: problem.key)
def test_spans_follow_the_mask_of_the_problem(problem: Problem) -> None:
    for queries, keys in problem.sequences:
        first, end = spans(problem, queries, keys, np.arange(queries))
        for row in range(queries):
            low, high = problem.seen_keys(row, queries, keys)
            assert (end[row] - first[row]) == max(0, high - low)
            assert high <= low or (first[row], end[row]) == (low, high)


@pytest.mark.parametrize("dtype", DType)
def test_bits_agree_with_torch(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    values = np.concatenate([rng.standard_normal(2000) * 10.0 ** rng.integers(-8, 5, 2000), [0.0, -0.0, np.inf, 1e6]])
    kind = torch.float16 if dtype is DType.FP16 else torch.bfloat16
    held = torch.from_numpy(values.astype(np.float32)).to(kind)
    bits = to_bits(values.astype(np.float32), dtype)
    assert np.array_equal(bits, held.view(torch.int16).numpy().view(np.uint16))
    assert np.array_equal(from_bits(bits, dtype), held.double().numpy())
    assert np.array_equal(is_finite(bits, dtype), held.isfinite().numpy())
    assert np.isnan(from_bits(to_bits(np.array([np.nan]), dtype), dtype)).all()
    assert largest_finite(dtype) == int(torch.tensor(torch.finfo(kind).max, dtype=kind).view(torch.int16))
    assert smallest(dtype) == torch.finfo(kind).smallest_normal * torch.finfo(kind).eps


@pytest.mark.parametrize("dtype", DType)
def test_the_absolute_term_is_that_of_flash_attention(dtype: DType) -> None:
    kind = torch.float16 if dtype is DType.FP16 else torch.bfloat16
    reference = np.random.default_rng(5).standard_normal((30, 16))
    held = torch.from_numpy(round_to(reference, dtype)).to(kind)
    want = 2 * (held + 0.3 - 0.3 - held).abs()
    assert rounding_atol(reference, np.array([0, 20]), dtype).tolist() == [want[:20].max(), want[20:].max()]
