"""The parity gate: a kernel runs the cases that it drew, and each output is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from evoengine.device.protocols import LoadedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionOutput
from evoengine.model import Verdict
from evoengine.parity.compare import judge
from evoengine.parity.controls.bit_repeat import difference
from evoengine.parity.inputs.case import ParityCase

REPEATED: Final = 1
"""The case that runs twice in a row: the first of them that is more than one row, and still cheap."""


def run_gate(
    loaded: LoadedKernel,
    cases: Iterable[ParityCase],
    inputs_seed: int | None = None,
    replays: Sequence[AttentionOutput] = (),
    *,
    saw: Callable[[ParityCase, AttentionOutput], object] | None = None,
) -> Verdict:
    """Runs the cases in order, one of them twice, and stops at the first failure.

    Args:
        loaded: the candidate.
        cases: at least one; put cheap ones first, and the one whose errors are to be told last.
        inputs_seed: of the pool that they were drawn from, for the record.
        replays: what the kernel made of the first cases under the launch mode that is timed; must be the same bits.
        saw: is given each case with its output.

    Raises:
        LaunchError: the kernel faulted; the message names the case.
    """
    verdict = Verdict(True, 0.0, 0.0, 0.0, 0, "", inputs_seed=inputs_seed)
    largest_share, worst_case = -1.0, ""
    for number, case in enumerate(cases):
        output = _run(loaded, case)
        if saw is not None:
            saw(case, output)
        result = judge(case, output)
        if number == REPEATED and not result.reason:
            result = replace(result, reason=difference(output, _run(loaded, case)))
        if number < len(replays) and not result.reason:
            wrong = difference(output, replays[number])
            result = replace(result, reason=f"replayed as timed, {wrong}" if wrong else "")
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


def _run(loaded: LoadedKernel, case: ParityCase) -> AttentionOutput:
    try:
        return loaded.attention(case.inputs)
    except LaunchError as error:
        raise LaunchError(f"{case.name}: {error}") from error
