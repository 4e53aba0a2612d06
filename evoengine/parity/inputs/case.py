"""One input with its truth and what passes: everything that a verdict needs besides the candidate's output."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.parity.float_bits import Bits, Real, to_bits
from evoengine.parity.inputs.row_sample import Sample, choose_sample, keyless_rows
from evoengine.parity.reference.bounds import Bounds, lse_bounds, output_bounds
from evoengine.parity.reference.fp64_attention import attention_fp64, block_spans
from evoengine.parity.reference.sdpa_reference import attention_same_precision


def fingerprint(bits: Bits) -> str:
    """SHA-256 over bit patterns ``[n, head_dim]``."""
    return hashlib.sha256(np.ascontiguousarray(bits).tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class LseTruth:
    """The log-sum-exp of the sampled rows, and how far off each may be: ``[n]``."""

    values: Real
    bounds: Real


@dataclass(frozen=True, eq=False)
class ParityCase:
    """One input with its truth and its bounds; picklable."""

    name: str
    inputs: AttentionInputs
    sample: Sample
    """Rows that are compared with the truth; all others are checked for being written and finite."""
    reference: Real
    """float64 ``[n, head_dim]``."""
    bounds: Bounds
    keyless: NDArray[np.bool_]
    """Rows that see no key, as they lie in memory: ``[memory_batch, rows_q]``."""
    lse: LseTruth | None = None
    """Where the problem asks for it."""
    yardstick: str = ""
    """Fingerprint of the sampled rows as same-precision SDPA computes them."""

    def is_yardsticks(self, output: AttentionOutput) -> bool:
        """Whether an output has the very bits of same-precision SDPA in all sampled rows."""
        rows = output.o[self.sample.batch, self.sample.head, self.sample.row]
        return bool(self.yardstick) and fingerprint(rows) == self.yardstick

    @property
    def max_error(self) -> float:
        """The largest absolute error that passes in any head."""
        return float(self.bounds.max_error.max())


def make_case(name: str, inputs: AttentionInputs, seed: int) -> ParityCase:
    """Computes truth and bounds of one input.

    Args:
        name: for messages.
        inputs: what a candidate will get.
        seed: of the sample, where the problem is too large to be compared whole.
    """
    problem = inputs.problem
    sample = choose_sample(problem, seed)
    truth = attention_fp64(inputs, sample)
    same_precision = attention_same_precision(inputs, sample)
    lse = None
    if problem.lse:
        spans = [block_spans(problem, block) for block in sample.blocks]
        keys = np.concatenate([end - first for first, end in spans]).astype(np.float64)
        lse = LseTruth(truth.lse, lse_bounds(inputs, truth, keys))
    bounds = output_bounds(truth, same_precision, sample, problem.dtype)
    yardstick = fingerprint(to_bits(same_precision, problem.dtype))
    return ParityCase(name, inputs, sample, truth.o, bounds, keyless_rows(problem), lse, yardstick)
