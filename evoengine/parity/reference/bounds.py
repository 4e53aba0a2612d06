"""What passes: bounds on the error of O per head, and on the error of each row's log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.kernel.call import AttentionInputs
from evoengine.model import DType
from evoengine.parity.float_bits import Real, epsilon, round_to, rounding_rms, smallest
from evoengine.parity.inputs.row_sample import Sample
from evoengine.parity.reference.fp64_attention import TANH_ERROR, Truth

ERROR_RATIO: Final = 2.0
"""A candidate may err this many times what SDPA errs."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """One number for each head of each block of a sample."""

    max_error: Real
    """Largest absolute error that passes."""
    l2_error: Real
    """Largest ``|out - ref|₂`` of the head that passes."""
    l2_size: Real
    """``|ref|₂`` of the head."""


def output_bounds(truth: Truth, same_precision: Real, sample: Sample, dtype: DType) -> Bounds:
    """The rule of FlashAttention's tests, head by head, and a relative L2 error beside it.

    ``max|out - ref| <= 2 max|sdpa - ref| + atol``, and ``|out - ref|₂ / |ref|₂`` may be twice that of SDPA plus eps/8:
    it sees small errors that are everywhere. Where a head has few elements, or one key has all the weight, SDPA may be
    right by luck. It is taken to err at least as rounding is expected to: of the weights by ``truth.noise``, of the
    result by half a step at the head's largest value, or by 0.2 eps of it all (root mean square).
    """
    error, starts = same_precision - truth.o, sample.starts
    largest = _largest(truth.o, starts)
    binade = 2.0 ** np.floor(np.log2(np.maximum(largest, smallest(dtype))))
    step = np.where(largest > 0, np.maximum(epsilon(dtype) * binade, smallest(dtype)), 0.0)
    rounding = np.maximum(_largest(error, starts), step / 2 + _largest(truth.noise, starts))
    size = l2_norms(truth.o, starts)
    elements = np.diff([*starts, len(error)]) * error.shape[1]
    result = np.maximum(size * rounding_rms(dtype), np.where(largest > 0, smallest(dtype) / 2 * np.sqrt(elements), 0.0))
    relative = np.maximum(l2_norms(error, starts), np.hypot(result, l2_norms(truth.noise, starts)))
    return Bounds(
        max_error=ERROR_RATIO * rounding + rounding_atol(truth.o, starts, dtype),
        l2_error=ERROR_RATIO * relative + size * epsilon(dtype) / 8,
        l2_size=size,
    )


def rounding_atol(reference: Real, starts: np.ndarray, dtype: DType) -> Real:
    """FlashAttention's absolute term: what adding and taking away 0.3 in the dtype does to the reference, twice."""
    held = round_to(reference, dtype)
    back = round_to(round_to(held + 0.3, dtype) - 0.3, dtype)
    return 2 * _largest(back - held, starts)


def lse_bounds(inputs: AttentionInputs, truth: Truth, keys: Real) -> Real:
    """How far the log-sum-exp of each row may be off: ``[n]``, in nats.

    A kernel multiplies fp16 or bf16, which is exact in f32, adds in f32, and works in base 2 with ``ex2.approx`` and
    ``lg2.approx``. Its log-sum-exp moves no further than its worst logit does (the function is 1-Lipschitz in the
    largest norm), plus the relative error of its sum, plus the rounding of the result:

    * a logit is a sum of head_dim products in some order: off by at most ``head_dim 2^-24 Σ|q||k|`` times the scale;
    * ``ex2.approx`` of a rounded argument, once per key and again at every rescale, and ``lg2.approx``, are good to
      2^-22 each, and to 2^-24 of the argument's size: together 2^-20 of ``1 + |lse| + max|logit|``;
    * a sum of n positive terms is off by at most ``n 2^-24`` of itself;
    * with a softcap, three times the error of the hardware's ``tanh`` on the largest logit, which may be all of it.

    Each is the worst case; rounding errors mostly cancel, so that honest kernels stay far below. Weights that were
    rounded to the dtype before they are summed are not honest: the sum is kept in f32 for its own sake.

    Args:
        inputs: of the call.
        truth: of its sampled rows.
        keys: that the rows see, ``[n]``.
    """
    problem = inputs.problem
    size = np.abs(np.where(np.isfinite(truth.lse), truth.lse, 0.0)) + truth.top
    bound = truth.products * problem.head_dim * 2.0**-24 + (1 + size) * 2.0**-20 + keys * 2.0**-24
    if problem.softcap:
        bound = bound + 3 * TANH_ERROR * truth.top
    return bound


def l2_norms(values: Real, starts: np.ndarray) -> Real:
    """``|values|₂`` of each head."""
    norms: Real = np.sqrt(np.add.reduceat(np.einsum("rd,rd->r", values, values), starts))
    return norms


def _largest(values: Real, starts: np.ndarray) -> Real:
    """The largest absolute value of each head."""
    largest: Real = np.maximum.reduceat(np.abs(values).max(axis=1), starts)
    return largest
