"""The float64 reference against PyTorch in float64, and the tolerance against hand arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evoengine.model import DType, Problem
from evoengine.parity.bits import from_bits, is_finite, round_to, to_bits
from evoengine.parity.gate import rounding_atol
from evoengine.parity.inputs import PROFILES, make_inputs
from evoengine.parity.reference import attention_fp64, attention_same_precision, sample_rows, visible

PROBLEMS = [
    Problem(2, 4, 37, 16, kv_heads=2, seq_kv=83),
    Problem(1, 2, 37, 32, seq_kv=83, causal=True),
    Problem(1, 2, 83, 16, seq_kv=37, causal=True, dtype=DType.BF16),
    Problem(1, 1, 1, 8),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
@pytest.mark.parametrize("profile", PROFILES)
def test_fp64_agrees_with_torch(problem: Problem, profile: str) -> None:
    inputs = make_inputs(problem, profile, seed=1, layout="bshd")
    q, k, v = (torch.from_numpy(from_bits(bits, problem.dtype)) for bits in (inputs.q, inputs.k, inputs.v))
    mask = torch.ones(problem.seq_q, problem.seq_kv, dtype=torch.bool)
    if problem.causal:
        mask = mask.tril(problem.seq_kv - problem.seq_q)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    want[:, :, ~mask.any(dim=1)] = 0
    rows = np.arange(problem.seq_q)
    np.testing.assert_allclose(attention_fp64(inputs, rows), want.numpy(), rtol=1e-12, atol=1e-12)
    assert np.array_equal(visible(problem, rows), mask.numpy())


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_same_precision_errs_by_roundings_and_no_more(problem: Problem) -> None:
    inputs = make_inputs(problem, "normal", seed=2)
    rows = np.arange(problem.seq_q)
    error = np.abs(attention_same_precision(inputs, rows) - attention_fp64(inputs, rows)).max()
    step = 2.0**-10 if problem.dtype is DType.FP16 else 2.0**-7
    assert error < 8 * step
    assert error > 0 or problem.seq_kv == 1


def test_sampled_rows_are_the_rows_of_the_whole() -> None:
    problem = Problem(1, 2, 200, 16, seq_kv=90, causal=True)
    rows = sample_rows(problem, seed=3, full_flops=10**6)
    assert len(rows) < 200
    assert rows[0] == 0
    assert rows[-1] == 199
    assert (np.diff(rows) > 0).all()
    inputs = make_inputs(problem, "normal", seed=3)
    for attention in (attention_fp64, attention_same_precision):
        whole = attention(inputs, np.arange(200))
        np.testing.assert_allclose(attention(inputs, rows), whole[:, :, rows], atol=1e-3)


def test_small_problems_are_compared_whole() -> None:
    assert len(sample_rows(Problem(1, 8, 512, 64), seed=0)) == 512
    assert len(sample_rows(Problem(4, 16, 16384, 128), seed=0)) == 16


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


@pytest.mark.parametrize("dtype", DType)
def test_the_absolute_term_is_flash_attentions(dtype: DType) -> None:
    kind = torch.float16 if dtype is DType.FP16 else torch.bfloat16
    reference = np.random.default_rng(5).standard_normal((1, 2, 30, 16))
    held = torch.from_numpy(round_to(reference, dtype)).to(kind)
    assert rounding_atol(reference, dtype) == 2 * (held + 0.3 - 0.3 - held).abs().max().item()


def test_inputs_are_seeded() -> None:
    problem = PROBLEMS[0]
    first, again = make_inputs(problem, "normal", 1), make_inputs(problem, "normal", 1)
    other = make_inputs(problem, "normal", 2)
    assert np.array_equal(first.q, again.q)
    assert not np.array_equal(first.q, other.q)
    assert not np.array_equal(first.k, first.v)
