"""Parity case: one input with its reference results and error bounds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.parity.float_bits import Bits, Real, round_to, to_bits
from evoengine.parity.reference.bias import BiasTest, bias_tests
from evoengine.parity.reference.bounds import Bounds, lse_bounds, output_bounds
from evoengine.parity.reference.fp64_attention import attention_fp64, block_spans
from evoengine.parity.reference.row_sample import Sample, choose_sample, every_row, keyless_rows
from evoengine.parity.reference.sdpa_reference import attention_same_precision


def fingerprint(bits: Bits) -> str:
    """Computes the SHA-256 of bit patterns ``[n, head_dim]``."""
    return hashlib.sha256(np.ascontiguousarray(bits).tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class LseTruth:
    """Log-sum-exp of the sampled rows and the allowed error of each, ``[n]``."""

    values: Real
    bounds: Real


@dataclass(frozen=True, eq=False)
class ParityCase:
    """One input with its reference results and error bounds; picklable."""

    name: str
    inputs: AttentionInputs
    sample: Sample
    """Rows that are compared with the reference; all others must only be written and finite."""
    reference: Real
    """Reference output of the sampled rows, float64 ``[n, head_dim]``."""
    rounded: NDArray[np.float32]
    """Reference output in the problem's dtype."""
    bounds: Bounds
    keyless: NDArray[np.bool_]
    """Mask of rows without visible keys, in memory order: ``[memory_batch, rows_q]``."""
    bias: tuple[BiasTest, ...] = ()
    """Tests for small errors that all rows share."""
    lse: LseTruth | None = None
    """Reference log-sum-exp, if the problem requests it."""
    sdpa_fingerprint: str = ""
    """Fingerprint of same-precision SDPA's output of the sampled rows."""

    def matches_sdpa(self, output: AttentionOutput) -> bool:
        """Returns whether all sampled rows of an output have the bits of same-precision SDPA."""
        rows = output.o[self.sample.batch, self.sample.head, self.sample.row]
        return bool(self.sdpa_fingerprint) and fingerprint(rows) == self.sdpa_fingerprint

    @property
    def max_error(self) -> float:
        """Largest allowed absolute error of any head."""
        return float(self.bounds.max_error.max())


def make_case(name: str, inputs: AttentionInputs, seed: int, *, all_rows: bool = False) -> ParityCase:
    """Computes reference results and bounds of one input.

    Args:
        name: Name of the case in messages.
        inputs: Inputs of the candidate.
        seed: Seed of the row sample, which has an effect only on problems too large to be compared whole.
        all_rows: Whether the sample ignores the limits on the output's size and the number of blocks; see
            :func:`~evoengine.parity.reference.row_sample.every_row`.
    """
    problem = inputs.problem
    sample = every_row(problem, seed) if all_rows else choose_sample(problem, seed)
    truth = attention_fp64(inputs, sample)
    same_precision = attention_same_precision(inputs, sample)
    lse = None
    if problem.lse:
        spans = [block_spans(problem, block) for block in sample.blocks]
        keys = np.concatenate([end - first for first, end in spans]).astype(np.float64)
        lse = LseTruth(truth.lse, lse_bounds(inputs, truth, keys))
    rounded = round_to(truth.o, problem.dtype).astype(np.float32)
    bounds = output_bounds(truth, same_precision, sample, problem.dtype)
    bias = bias_tests(inputs, truth, same_precision, sample)
    sdpa_fingerprint = fingerprint(to_bits(same_precision, problem.dtype))
    return ParityCase(
        name, inputs, sample, truth.o, rounded, bounds, keyless_rows(problem), bias, lse, sdpa_fingerprint
    )
