"""Error bounds of the parity gate: of O per head, and of the log-sum-exp per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.kernel.call import AttentionInputs
from evoengine.model import DType
from evoengine.parity.float_bits import Real, epsilon, round_to, rounding_rms, smallest
from evoengine.parity.reference.fp64_attention import TANH_ERROR, Truth
from evoengine.parity.reference.row_sample import Sample

ERROR_RATIO: Final = 2.0
"""Allowed ratio of a candidate's error to SDPA's error."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds of O; one number per head of each block of a sample."""

    max_error: Real
    """Largest allowed absolute error."""
    l2_error: Real
    """Largest allowed ``|out - ref|₂`` of the head."""
    l2_size: Real
    """``|ref|₂`` of the head."""


def output_bounds(truth: Truth, same_precision: Real, sample: Sample, dtype: DType) -> Bounds:
    """Computes the bounds of FlashAttention's tests per head, and a bound on the relative L2 error.

    The bounds are ``max|out - ref| <= 2 max|sdpa - ref| + atol``, and twice SDPA's ``|out - ref|₂ / |ref|₂`` plus
    eps/8. The L2 bound detects small errors in all elements. If a head has few elements, or one key has all the weight,
    SDPA may be exact by chance. Its error is therefore taken to be at least the expected rounding error:
    ``truth.noise`` from rounded weights, and from the rounded result half a step at the head's largest value (maximum)
    or 0.2 eps of all values (root mean square). ``truth.flushed`` is added: whether SDPA on the CPU keeps f32 numbers
    below the normal ones depends on the CPU.

    Args:
        truth: Reference results in float64.
        same_precision: Output of same-precision SDPA, ``[n, head_dim]``.
        sample: Compared rows.
        dtype: Data type of the problem.
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
    flushed = np.maximum.reduceat(truth.flushed, starts)
    return Bounds(
        max_error=ERROR_RATIO * rounding + rounding_atol(truth.o, starts, dtype) + flushed,
        l2_error=ERROR_RATIO * relative + size * epsilon(dtype) / 8 + flushed * np.sqrt(elements),
        l2_size=size,
    )


def rounding_atol(reference: Real, starts: np.ndarray, dtype: DType) -> Real:
    """Computes FlashAttention's absolute term: twice the error of adding and subtracting 0.3 in the dtype."""
    held = round_to(reference, dtype)
    back = round_to(round_to(held + 0.3, dtype) - 0.3, dtype)
    return 2 * _largest(back - held, starts)


def lse_bounds(inputs: AttentionInputs, truth: Truth, keys: Real) -> Real:
    """Computes the allowed absolute error of the log-sum-exp of each row, ``[n]``, in nats.

    A kernel multiplies fp16 or bf16, which is exact in f32, adds in f32, and works in base 2 with ``ex2.approx`` and
    ``lg2.approx``. The error of its log-sum-exp is at most the largest error of a logit (the function is 1-Lipschitz in
    the maximum norm), plus the relative error of its sum, plus the rounding of the result:

    * a logit sums head_dim products in any order: its error is at most ``head_dim 2^-24 Σ|q||k|`` times the scale's
      magnitude;
    * ``ex2.approx`` of a rounded argument, once per key and again at every rescale, and ``lg2.approx`` have errors of
      2^-22 each, and of 2^-24 of the argument's size: together 2^-20 of ``1 + |lse| + max|logit|``;
    * a sum of n positive terms has a relative error of at most ``n 2^-24``;
    * with a softcap, three times the error of the hardware's ``tanh`` on the largest logit.

    Each term is a worst case. Rounding errors mostly cancel, so that correct kernels stay far below the bound. A kernel
    that rounds weights to the dtype before it sums them exceeds the bound: the sum must be kept in f32.

    Args:
        inputs: Inputs of the call.
        truth: Reference results of the sampled rows.
        keys: Number of visible keys of each row, ``[n]``.
    """
    problem = inputs.problem
    size = np.abs(np.where(np.isfinite(truth.lse), truth.lse, 0.0)) + truth.top
    bound = truth.products * problem.head_dim * 2.0**-24 + (1 + size) * 2.0**-20 + keys * 2.0**-24
    if problem.softcap:
        bound = bound + 3 * TANH_ERROR * truth.top
    return bound


def l2_norms(values: Real, starts: np.ndarray) -> Real:
    """Computes ``|values|₂`` of each head."""
    norms: Real = np.sqrt(np.add.reduceat(np.einsum("rd,rd->r", values, values), starts))
    return norms


def _largest(values: Real, starts: np.ndarray) -> Real:
    """Computes the largest absolute value of each head."""
    largest: Real = np.maximum.reduceat(np.abs(values).max(axis=1), starts)
    return largest
