"""The slow part of the inspection: compute-sanitizer over a finalist, and who decides when its racecheck alone objects.

What memcheck, initcheck and synccheck find is final. racecheck (13.0, on sm_90) also reports races across a barrier of
the whole CTA, where groups of warps met at barriers of their own before it, and not equally often. In the machine code
of such a kernel an unconditional ``BAR.SYNC 0x0`` stands on the only path between the accesses that it names; a second
barrier behind the first one silences it. So its findings are checked: the emulator runs the same call on the same
inputs, all CTAs, and looks for races exactly. Only where it ran everything and found none is racecheck overruled, and
the row tells both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from evoengine.device.tools.launcher import LaunchJob
from evoengine.device.tools.sanitizer import Sanitizers, ToolReport
from evoengine.errors import CandidateError
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.records import Kernel
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import CasePool
from evoengine.search.candidate.inspection import Inspection
from evoengine.target import Target

SANITIZED_FLOPS: Final = 2 * 10**9
"""Up to this size compute-sanitizer runs the problem itself, of larger ones the largest small case: it is slow."""

DISPUTABLE: Final = "racecheck"
"""The tool whose findings are checked."""


def inspect_by_sanitizer(kernel: Kernel, pool: CasePool, sanitizers: Sanitizers, target: Target) -> Inspection:
    """What compute-sanitizer says, on the GPU of this process.

    Args:
        kernel: the finalist.
        pool: of the search.
        sanitizers: which wait for a kernel.
        target: the GPU.
    """
    start_s = time.perf_counter()
    inputs = sanitized_case(pool.draw(kernel.source.source_hash).gate).inputs
    found = judge_reports(sanitizers.look(LaunchJob.of(kernel, inputs)), kernel, inputs, target)
    return replace(found, seconds=time.perf_counter() - start_s)


def sanitized_case(gate: Sequence[ParityCase]) -> ParityCase:
    """The largest case of a gate that compute-sanitizer can run in seconds; the first one where none is."""
    return next(case for case in reversed(gate) if case.inputs.problem.flops <= SANITIZED_FLOPS or case is gate[0])


def judge_reports(reports: Sequence[ToolReport], kernel: Kernel, inputs: AttentionInputs, target: Target) -> Inspection:
    """What all tools say together.

    Args:
        reports: one per tool.
        kernel: the finalist.
        inputs: on which they ran it.
        target: the GPU.
    """
    notes = tuple(f"not checked: {report}" for report in reports if report.trouble)
    found = sorted((report for report in reports if report.finding), key=lambda report: report.tool == DISPUTABLE)
    if not found:
        return Inspection(notes=notes)
    if found[0].tool != DISPUTABLE:
        return Inspection(str(found[0]), notes)
    ruling = arbitrate(found[0], kernel, inputs, target)
    return replace(ruling, notes=(*notes, *ruling.notes))


def arbitrate(report: ToolReport, kernel: Kernel, inputs: AttentionInputs, target: Target) -> Inspection:
    """Whether races that racecheck found are ones.

    Args:
        report: what it found.
        kernel: the finalist.
        inputs: on which racecheck ran it.
        target: the GPU.

    Returns:
        The finding, with what the emulator says to it; or, if that ran the whole call and found no race, a note that
        tells both.
    """
    from evoengine.costmodel.device import EmulatorDevice  # lazily: it takes a while, and hardly ever is one needed

    device = EmulatorDevice(target, race_check_flops=inputs.problem.flops)
    try:
        with closing(device.load(kernel)) as loaded:
            loaded.attention(inputs)
    except (CandidateError, MemoryError) as error:
        return Inspection(f"{report}; checked on the emulator: {error}")
    told = f"the emulator's exact race check finds none in any CTA of the same call ({inputs.problem.key})"
    return Inspection(notes=(f"overruled: {report}; {told}",))
