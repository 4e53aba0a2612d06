"""Parity gate: runs a kernel on its cases and compares each output with the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from evoengine.device.protocols import LoadedKernel
from evoengine.errors import CandidateTimeoutError, LaunchError
from evoengine.kernel.call import AttentionOutput
from evoengine.model import Verdict
from evoengine.parity.compare import bit_difference, judge
from evoengine.parity.inputs.case import ParityCase

REPEATED: Final = 2
"""Index of the case that runs twice in a row: the first with several rows whose bits depend on Q and K."""


def run_gate(
    loaded: LoadedKernel,
    cases: Iterable[ParityCase],
    inputs_seed: int | None = None,
    replays: Sequence[AttentionOutput] = (),
    *,
    before: AttentionOutput | None = None,
    saw: Callable[[ParityCase, AttentionOutput], object] | None = None,
) -> Verdict:
    """Runs the cases in order, one of them twice, and stops at the first failure.

    Args:
        loaded: Candidate kernel.
        cases: Cases to run, at least one: cheap ones first, the one whose errors the verdict reports last.
        inputs_seed: Seed of the pool that the cases were drawn from; stored in the verdict.
        replays: Outputs of the first cases under the launch mode used for timing; must have equal bits.
        before: Results of other inputs that the outputs hold before the first case; None for poison.
        saw: Callback that receives each case with its output.

    Returns:
        The verdict. Its errors and tolerance are those of the last case that ran.

    Raises:
        CandidateError: The kernel faulted or did not end in time; the message names the case.
    """
    verdict = Verdict(True, 0.0, 0.0, 0.0, 0, "", inputs_seed=inputs_seed)
    largest_share, worst_case = -1.0, ""
    for number, case in enumerate(cases):
        output = _run(loaded, case, before if number == 0 else None)
        if saw is not None:
            saw(case, output)
        result = judge(case, output)
        if not result.reason:
            result = replace(result, reason=_instability(loaded, case, output, number, replays))
        if result.reason or result.share > largest_share:
            largest_share, worst_case = result.share, case.name
        verdict = Verdict(
            passed=not result.reason,
            max_error=result.max_error,
            tolerance=result.tolerance,
            relative_l2=result.relative_l2,
            cases=verdict.cases + 1,
            worst_case=worst_case,
            reason=f"{case.name}: {result.reason}" if result.reason else "",
            inputs_seed=inputs_seed,
        )
        if result.reason:
            return verdict
    return verdict


def _instability(
    loaded: LoadedKernel, case: ParityCase, output: AttentionOutput, number: int, replays: Sequence[AttentionOutput]
) -> str:
    """Describes the first bits in which a second run or the timed replay differs; empty if there are none.

    The second run writes to outputs that hold finite results instead of poison: a kernel that writes only where it
    finds poison leaves them there.
    """
    if number == REPEATED and (wrong := bit_difference(output, _run(loaded, case, _negated(output)))):
        return f"called again with other results in the output, {wrong}"
    wrong = bit_difference(output, replays[number]) if number < len(replays) else ""
    return f"replayed as timed, {wrong}" if wrong else ""


def _run(loaded: LoadedKernel, case: ParityCase, before: AttentionOutput | None) -> AttentionOutput:
    try:
        return loaded.attention(case.inputs, before)
    except LaunchError as error:
        raise LaunchError(f"{case.name}: {error}") from error
    except CandidateTimeoutError as error:
        raise CandidateTimeoutError(f"{case.name}: {error}") from error


def _negated(output: AttentionOutput) -> AttentionOutput:
    """Returns results that are finite, but wrong in every element."""
    return AttentionOutput(output.o ^ np.uint16(0x8000), None if output.lse is None else -output.lse - 1)
