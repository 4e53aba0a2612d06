"""The parity gate: a candidate's output against float64 attention, within what same-precision SDPA errs itself.

The rule is FlashAttention's (``hopper/test_flash_attn.py``): ``max|out - ref| <= 2 max|sdpa - ref| + atol`` with
``atol = 2 max|ref + 0.3 - 0.3 - ref|`` in the dtype. On top of it, per head, ``|out - ref|₂ / |ref|₂`` may be twice
that of SDPA plus eps/8, which sees small errors that are everywhere; and every element must be written and finite.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.device.base import LoadedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.call import POISON_BITS, AttentionInputs
from evoengine.model import DType, Verdict
from evoengine.parity.bits import Bits, Real, epsilon, from_bits, is_finite, round_to
from evoengine.parity.reference import Rows, attention_fp64, attention_same_precision, sample_rows

ERROR_RATIO: Final = 2.0
"""A candidate may err this many times what SDPA errs."""


@dataclass(frozen=True, eq=False)
class ParityCase:
    """One input with its truth and its tolerance; picklable."""

    name: str
    inputs: AttentionInputs
    rows: Rows
    """Query rows that are compared with the truth; all others are checked for being written and finite."""
    reference: Real
    """float64 ``[batch, heads, len(rows), head_dim]``."""
    max_error: float
    """Largest absolute error that passes."""
    relative_l2: float
    """Largest relative L2 error of one head that passes."""


@dataclass(frozen=True)
class CaseResult:
    """One case, judged."""

    max_error: float
    relative_l2: float
    reason: str = ""
    """Why it failed; empty when it passed."""


def rounding_atol(reference: Real, dtype: DType) -> float:
    """FlashAttention's absolute term: what adding and taking away 0.3 in the dtype does to the reference, twice."""
    held = round_to(reference, dtype)
    back = round_to(round_to(held + 0.3, dtype) - 0.3, dtype)
    return float(2 * np.max(np.abs(back - held), initial=0.0))


def _relative_l2(out: Real, reference: Real) -> float:
    """Largest ``|out - ref|₂ / |ref|₂`` over the heads; a head whose truth is zero must be zero."""
    error = np.sqrt(np.sum((out - reference) ** 2, axis=(2, 3)))
    size = np.sqrt(np.sum(reference**2, axis=(2, 3)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / size)
    return float(ratio.max())


def make_case(name: str, inputs: AttentionInputs, seed: int) -> ParityCase:
    """Computes truth and tolerance of one input."""
    dtype = inputs.problem.dtype
    rows = sample_rows(inputs.problem, seed)
    reference = attention_fp64(inputs, rows)
    sdpa = attention_same_precision(inputs, rows)
    return ParityCase(
        name=name,
        inputs=inputs,
        rows=rows,
        reference=reference,
        max_error=ERROR_RATIO * float(np.max(np.abs(sdpa - reference))) + rounding_atol(reference, dtype),
        relative_l2=ERROR_RATIO * _relative_l2(sdpa, reference) + epsilon(dtype) / 8,
    )


def _place(index: tuple[int, ...]) -> str:
    batch, head, row, dim = index
    return f"batch {batch}, head {head}, row {row}, dim {dim}"


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))


def judge(case: ParityCase, output: Bits) -> CaseResult:
    """Judges one output.

    Args:
        case: what was run.
        output: uint16 bit patterns ``[batch, heads, seq_q, head_dim]``.
    """
    dtype = case.inputs.problem.dtype
    unwritten = output == POISON_BITS
    if unwritten.any():
        where = _place(_first(unwritten))
        reason = f"{int(unwritten.sum())} of {output.size} elements were never written, first {where}"
        return CaseResult(float("inf"), float("inf"), reason)
    broken = ~is_finite(output, dtype)
    if broken.any():
        index = _first(broken)
        value = float(from_bits(output[index].reshape(1), dtype)[0])
        reason = f"{int(broken.sum())} of {output.size} elements are not finite, first {value} at {_place(index)}"
        return CaseResult(float("inf"), float("inf"), reason)
    out = from_bits(output[:, :, case.rows], dtype)
    error = np.abs(out - case.reference)
    index = _first(error)
    result = CaseResult(float(error[index]), _relative_l2(out, case.reference))
    if result.max_error > case.max_error:
        place = _place((*index[:2], int(case.rows[index[2]]), index[3]))
        got, want = out[index], case.reference[index]
        reason = f"error {result.max_error:.3g} exceeds {case.max_error:.3g} at {place}: got {got:.5g}, want {want:.5g}"
        return CaseResult(result.max_error, result.relative_l2, reason)
    if result.relative_l2 > case.relative_l2:
        reason = f"relative L2 error {result.relative_l2:.3g} of a head exceeds {case.relative_l2:.3g}"
        return CaseResult(result.max_error, result.relative_l2, reason)
    return result


def run_gate(loaded: LoadedKernel, cases: Iterable[ParityCase]) -> Verdict:
    """Runs the cases in order and stops at the first failure.

    Args:
        loaded: the candidate.
        cases: at least one; put cheap ones first.

    Raises:
        LaunchError: the kernel faulted; the message names the case.
    """
    verdict = Verdict(True, 0.0, 0.0, 0.0, 0, "")
    worst = -1.0
    for case in cases:
        try:
            output = loaded.attention(case.inputs)
        except LaunchError as error:
            raise LaunchError(f"{case.name}: {error}") from error
        result = judge(case, output)
        ratio = result.max_error / case.max_error if case.max_error > 0 else result.max_error
        failed = bool(result.reason)
        is_worst = failed or ratio > worst
        worst = max(worst, ratio)
        verdict = Verdict(
            passed=not failed,
            max_error=result.max_error if is_worst else verdict.max_error,
            tolerance=case.max_error if is_worst else verdict.tolerance,
            relative_l2=max(verdict.relative_l2, result.relative_l2),
            cases=verdict.cases + 1,
            worst_case=case.name if is_worst else verdict.worst_case,
            reason=f"{case.name}: {result.reason}" if failed else "",
        )
        if failed:
            return verdict
    return verdict
