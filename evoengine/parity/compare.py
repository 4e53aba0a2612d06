"""Comparison of outputs: with float64 attention within the error of same-precision SDPA, and bit by bit.

The tolerance follows FlashAttention's tests (``hopper/test_flash_attn.py``):
``max|out - ref| <= 2 max|sdpa - ref| + atol`` with ``atol = 2 max|ref + 0.3 - 0.3 - ref|`` in the dtype, and twice
SDPA's relative L2 error plus eps/8; both per head (:mod:`evoengine.parity.reference.bounds`). Every element must be
written and finite, even if only a sample of rows is compared. Errors that are small in every element must not have a
common cause (:mod:`evoengine.parity.reference.bias`). A row without visible keys must be zero. A log-sum-exp
must be -inf exactly where there is no logit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evoengine.kernel.call import LSE_POISON_BITS, AttentionOutput, Logits
from evoengine.kernel.memory_layout import POISON_BITS
from evoengine.model import Problem
from evoengine.parity.float_bits import Bits, Real, all_finite, from_bits, is_finite, same_bits
from evoengine.parity.inputs.case import LseTruth, ParityCase
from evoengine.parity.reference.bias import largest_bias
from evoengine.parity.reference.bounds import l2_norms
from evoengine.parity.reference.row_sample import Sample


@dataclass(frozen=True)
class CaseResult:
    """Result of one case."""

    max_error: float
    """Largest error in the head with the largest ratio of error to tolerance."""
    tolerance: float
    """Tolerance of that head."""
    relative_l2: float
    """Largest relative L2 error of all heads."""
    reason: str = ""
    """Reason of the failure; empty if the case passed."""

    @property
    def share(self) -> float:
        """Ratio of error to tolerance."""
        return self.max_error / self.tolerance if self.tolerance > 0 else self.max_error


def judge(case: ParityCase, output: AttentionOutput) -> CaseResult:
    """Compares one output with its case; NaN and infinities never pass."""
    tolerance = case.max_error
    reason = _unusable(case, output.o)
    if not reason and case.lse is not None:
        reason = _unusable_lse(case, output.lse)
    if reason:
        return CaseResult(float("inf"), tolerance, float("inf"), reason)
    result = _compared(case, output.o)
    if result.reason or case.lse is None or output.lse is None:
        return result
    return CaseResult(result.max_error, result.tolerance, result.relative_l2, _wrong_lse(case, case.lse, output.lse))


def bit_difference(first: AttentionOutput, again: AttentionOutput) -> str:
    """Describes the first difference between two outputs of the same inputs; empty if all bits are equal.

    Bits are compared because a difference in the last bit shows a race that has not yet changed a result visibly, or
    state that persists between calls.
    """
    if not same_bits(first.o, again.o):
        wrong = first.o != again.o
        batch, head, row, dim = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        where = f"batch {batch}, head {head}, row {row}, dim {dim}"
        return f"the same inputs gave other bits in {int(wrong.sum())} of {wrong.size} elements, first {where}"
    if first.lse is not None and again.lse is not None:
        wrong = first.lse.view(np.uint32) != again.lse.view(np.uint32)
        if wrong.any():
            batch, head, row = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            where = f"batch {batch}, head {head}, row {row}"
            return f"the same inputs gave another log-sum-exp in {int(wrong.sum())} of {wrong.size} rows, first {where}"
    return ""


def _unusable(case: ParityCase, o: Bits) -> str:
    """Returns why an output fails without comparison: unwritten, not finite, or non-zero in a row without keys."""
    problem = case.inputs.problem
    if not all_finite(o, problem.dtype):
        unwritten = o == POISON_BITS
        if unwritten.any():
            where = _place(problem, *_first(unwritten))
            return f"{int(unwritten.sum())} of {o.size} elements were never written, first {where}"
        broken = ~is_finite(o, problem.dtype)
        index = _first(broken)
        value = float(from_bits(o[index].reshape(1), problem.dtype)[0])
        where = _place(problem, *index)
        return f"{int(broken.sum())} of {o.size} elements are not finite, first {value} at {where}"
    if case.keyless.any():
        wrong = ((o & np.uint16(0x7FFF)) != 0) & case.keyless[:, None, :, None]
        if wrong.any():
            index = _first(wrong)
            value = float(from_bits(o[index].reshape(1), problem.dtype)[0])
            return f"a row without a key must be zero but is {value:.5g} at {_place(problem, *index)}"
    return ""


def _unusable_lse(case: ParityCase, lse: Logits | None) -> str:
    problem = case.inputs.problem
    if lse is None:
        return "the log-sum-exp is missing"
    unwritten = lse.view(np.uint32) == LSE_POISON_BITS
    if unwritten.any():
        where = _place(problem, *_first(unwritten))
        return f"{int(unwritten.sum())} of {lse.size} log-sum-exps were never written, first {where}"
    sinks = np.full(problem.heads, -np.inf) if case.inputs.sink is None else case.inputs.sink
    empty = case.keyless[:, None] & (sinks == -np.inf)[None, :, None]
    broken = np.where(empty, lse != -np.inf, ~np.isfinite(lse))
    if broken.any():
        index = _first(broken)
        rule = "-inf, because the row has no logit" if empty[index] else "finite"
        return f"the log-sum-exp {float(lse[index])} must be {rule}, at {_place(problem, *index)}"
    return ""


def _compared(case: ParityCase, o: Bits) -> CaseResult:
    problem, sample, bounds = case.inputs.problem, case.sample, case.bounds
    out = from_bits(o[sample.batch, sample.head, sample.row], problem.dtype)
    difference = out - case.reference
    by_row = np.abs(difference).max(axis=1)
    error = np.maximum.reduceat(by_row, sample.starts)
    l2_error = l2_norms(difference, sample.starts)
    head = int(np.argmax(_shares(error, bounds.max_error)))
    relative = float(_shares(l2_error, bounds.l2_size).max())
    max_error, tolerance = float(error[head]), float(bounds.max_error[head])
    reason = ""
    if max_error > tolerance:
        row = _row_of(sample, head, by_row)
        dim = int(np.argmax(np.abs(difference[row])))
        got, want = out[row, dim], case.reference[row, dim]
        place = _place(problem, *_memory(sample, row), dim)
        reason = f"error {max_error:.3g} exceeds {tolerance:.3g} at {place}: got {got:.5g}, want {want:.5g}"
    elif (l2_error > bounds.l2_error).any():
        head = int(np.argmax(_shares(l2_error, bounds.l2_error)))
        got, want = (float(values[head] / bounds.l2_size[head]) for values in (l2_error, bounds.l2_error))
        place = _place(problem, *_memory(sample, int(sample.starts[head]))[:2])
        reason = f"relative L2 error {got:.3g} exceeds {want:.3g} in {place}"
    return CaseResult(max_error, tolerance, relative, reason or _biased(case, out))


def _biased(case: ParityCase, out: Real) -> str:
    """Returns why errors that are small in each element have a common cause; empty if they have none."""
    problem, starts = case.inputs.problem, case.sample.starts
    if not case.bias:
        return ""
    worst = largest_bias(case.bias, (out - case.rounded).astype(np.float32), starts)
    if worst.share <= 1:
        return ""
    where = "all heads"
    if worst.head is not None:
        where = _place(problem, *_memory(case.sample, int(starts[worst.head]))[:2])
    return f"{worst.name} is off by {worst.estimate:.3%}, which exceeds {worst.bound:.3%}, in {where}"


def _wrong_lse(case: ParityCase, truth: LseTruth, lse: Logits) -> str:
    sample = case.sample
    got = lse[sample.batch, sample.head, sample.row].astype(np.float64)
    some = np.isfinite(truth.values)
    error = np.abs(np.subtract(got, truth.values, where=some, out=np.zeros_like(got)))
    row = int(np.argmax(_shares(error, truth.bounds)))
    if error[row] <= truth.bounds[row]:
        return ""
    place = _place(case.inputs.problem, *_memory(sample, row))
    values = f"got {got[row]:.7g}, want {truth.values[row]:.7g}"
    return f"log-sum-exp off by {error[row]:.3g}, which exceeds {truth.bounds[row]:.3g}, at {place}: {values}"


def _shares(errors: Real, of: Real) -> Real:
    """Divides errors by their scale; 0 / 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares: Real = np.where(errors == 0, 0.0, errors / of)
    return shares


def _row_of(sample: Sample, head: int, by_row: Real) -> int:
    """Returns the row of one head with the largest error."""
    start = int(sample.starts[head])
    stop = int(sample.starts[head + 1]) if head + 1 < len(sample.starts) else len(by_row)
    return start + int(np.argmax(by_row[start:stop]))


def _memory(sample: Sample, row: int) -> tuple[int, int, int]:
    return int(sample.batch[row]), int(sample.head[row]), int(sample.row[row])


def _place(problem: Problem, batch: int, head: int, row: int | None = None, dim: int | None = None) -> str:
    """Describes the position of an element; packed rows are counted within their sequence."""
    outer = f"batch {batch}"
    if problem.packed and row is not None:
        ends = np.cumsum(problem.lengths_q)
        sequence = int(np.searchsorted(ends, row, side="right"))
        outer, row = f"sequence {sequence}", row - int(ends[sequence]) + problem.lengths_q[sequence]
    inner = [f"{name} {index}" for name, index in (("row", row), ("dim", dim)) if index is not None]
    return ", ".join([outer, f"head {head}", *inner])


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
