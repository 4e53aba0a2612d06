"""The slow part of the inspection: compute-sanitizer on a finalist, and verification of racecheck's findings.

Findings of memcheck, initcheck and synccheck are final. racecheck (13.0, on sm_90) also reports races across a barrier
of the whole CTA, where groups of warps synchronised at barriers of their own before it, and not equally often. The
machine code of such a kernel has an unconditional ``BAR.SYNC 0x0`` on the only path between the accesses that it names;
a second barrier behind the first one silences it. So its findings are verified: the emulator runs the same call on the
same inputs, all CTAs, and detects races exactly. Only where it ran everything and found none is racecheck overruled,
and the row reports both.
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
from evoengine.model import Problem
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import CasePool
from evoengine.search.candidate.results import Inspection
from evoengine.target import Target

SANITIZED_FLOPS: Final = 2 * 10**9
"""Largest problem that compute-sanitizer runs whole; of larger ones it runs the largest small case."""
SANITIZED_BYTES: Final = 2**24
"""Largest tensors of such a problem: a decode problem has few FLOP, but may have large K and V."""

DISPUTABLE: Final = "racecheck"
"""Tool whose findings are verified."""


def inspect_by_sanitizer(kernel: Kernel, pool: CasePool, sanitizers: Sanitizers, target: Target) -> Inspection:
    """Runs compute-sanitizer on the GPU of this process.

    Args:
        kernel: Finalist.
        pool: Inputs of the search.
        sanitizers: Started tools that wait for a kernel.
        target: GPU that they run on.
    """
    start_s = time.perf_counter()
    inputs = sanitized_case(pool.draw(kernel.source.source_hash).gate).inputs
    found = judge_reports(sanitizers.run(LaunchJob.of(kernel, inputs)), kernel, inputs, target)
    return replace(found, seconds=time.perf_counter() - start_s)


def sanitized_case(gate: Sequence[ParityCase]) -> ParityCase:
    """Returns the largest case of a gate that compute-sanitizer can run in seconds; the first one where none is."""
    return next(case for case in reversed(gate) if is_sanitized_whole(case.inputs.problem) or case is gate[0])


def is_sanitized_whole(problem: Problem) -> bool:
    """Returns whether compute-sanitizer can run a problem in seconds."""
    return problem.flops <= SANITIZED_FLOPS and problem.min_bytes <= SANITIZED_BYTES


def judge_reports(reports: Sequence[ToolReport], kernel: Kernel, inputs: AttentionInputs, target: Target) -> Inspection:
    """Joins the reports of all tools into one inspection.

    Args:
        reports: One per tool.
        kernel: Finalist.
        inputs: Inputs that they ran it on.
        target: GPU that they ran on.
    """
    notes = tuple(f"not checked: {report}" for report in reports if report.trouble)
    found = sorted((report for report in reports if report.finding), key=lambda report: report.tool == DISPUTABLE)
    if not found:
        return Inspection(notes=notes)
    if found[0].tool != DISPUTABLE:
        return Inspection(str(found[0]), notes)
    ruling = _verify_on_emulator(found[0], kernel, inputs, target)
    return replace(ruling, notes=(*notes, *ruling.notes))


def _verify_on_emulator(report: ToolReport, kernel: Kernel, inputs: AttentionInputs, target: Target) -> Inspection:
    """Verifies races that racecheck reported.

    Args:
        report: Report of racecheck.
        kernel: Finalist.
        inputs: Inputs that racecheck ran it on.
        target: GPU that it ran on.

    Returns:
        The finding with the emulator's error; or, if the emulator ran the whole call and found no race, a note that
        reports both.
    """
    from evoengine.costmodel.device import EmulatorDevice  # lazily: slow to import, and rarely needed

    device = EmulatorDevice(target, race_check_flops=inputs.problem.flops, cta_orders=0)
    try:
        with closing(device.load(kernel)) as loaded:
            loaded.attention(inputs)
    except (CandidateError, MemoryError) as error:
        return Inspection(f"{report}; checked on the emulator: {error}")
    exact = f"the emulator's exact race check finds none in any CTA of the same call ({inputs.problem.key})"
    return Inspection(notes=(f"overruled: {report}; {exact}",))
