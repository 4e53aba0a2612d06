"""Counters of a variant's best kernel: archive features and the cost of each source line, from the emulator."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from evoengine.costmodel.device import CallProfile, EmulatorDevice
from evoengine.costmodel.hotspots import line_counts
from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.ptx.pipes import Pipe
from evoengine.evolution.records import LineCounters
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.model import Problem
from evoengine.search.candidate.screening import screened_kernel
from evoengine.target import Target

COUNTING_LIMIT_S: Final = 300.0
"""Longest time for the counters of one kernel."""
MOST_LINES: Final = 24
"""Lines that a proposer sees."""
_SECTOR_BYTES: Final = 32


@dataclass(frozen=True)
class KernelCounts:
    """Counters of one kernel; picklable."""

    features: Mapping[str, float]
    """Numbers that place the kernel in the archive."""
    lines: tuple[LineCounters, ...]
    """Most expensive source lines; empty where they were not asked for."""


class KernelCounter:
    """Counts kernels on the emulator. Lives in a process of its own, because the code comes from a patch.

    Args:
        problem: Problem to count.
        target: GPU whose costs rank the lines.
        cache_dir: Compilation cache, for binaries with line information; None for none.
    """

    def __init__(self, problem: Problem, target: Target, cache_dir: Path | None) -> None:
        self._problem = problem
        self._target = target
        self._compiler = Compiler(cache_dir)
        self._device = EmulatorDevice(target, counters=True)

    def count(self, kernel: Kernel, lines: bool) -> KernelCounts:
        """Runs a kernel and counts.

        Args:
            kernel: Kernel that passed the parity gate.
            lines: Whether to compile it again with line information and count by line.

        Raises:
            CandidateError: The kernel faulted or could not be compiled.
        """
        if lines:
            kernel = screened_kernel(self._compiler, kernel.source, kernel.binary.arch)
        loaded = self._device.load(kernel)
        profile = loaded.profile(self._problem)
        return KernelCounts(_features(kernel, profile), self._lines(kernel, profile) if lines else ())

    def _lines(self, kernel: Kernel, profile: CallProfile) -> tuple[LineCounters, ...]:
        texts = kernel.source.text.splitlines()
        found = []
        for counts in line_counts(profile.reports[0].sites, self._target)[:MOST_LINES]:
            own = 0 < counts.line <= len(texts)
            found.append(
                LineCounters(
                    file="",
                    line=counts.line,
                    text=texts[counts.line - 1].strip() if own else "",
                    instructions=counts.executions,
                    global_bytes=counts.sectors * _SECTOR_BYTES,
                    shared_wavefronts=counts.wavefronts,
                    wasted_wavefronts=counts.conflicts,
                )
            )
        return tuple(found)


def _features(kernel: Kernel, profile: CallProfile) -> dict[str, float]:
    """Returns shares of warp instructions by pipe, wavefronts per instruction, registers and time terms."""
    pipes: Counter[Pipe] = Counter()
    for report in profile.reports:
        pipes.update(report.pipes)
    total = sum(pipes.values()) or 1
    resources = kernel.binary.resources
    return {
        "tensor_share": pipes[Pipe.TENSOR] / total,
        "special_share": pipes[Pipe.MUFU] / total,
        "shared_share": pipes[Pipe.LSU_SHARED] / total,
        "instructions": float(total),
        "wavefronts": float(sum(_wavefronts(report) for report in profile.reports)),
        "registers": float(resources.registers),
        "smem_bytes": float(resources.static_smem_bytes + resources.dynamic_smem_bytes),
        "predicted_us": profile.prediction.us,
    }


def _wavefronts(report: LaunchReport) -> int:
    return sum(site.wavefronts for site in report.sites)


def cell_of(features: Mapping[str, float] | None) -> tuple[int, ...]:
    """Returns the archive cell: share of tensor instructions, wavefronts of shared memory, registers.

    Args:
        features: Features of the best kernel; None where it could not be counted.
    """
    if features is None:
        return ()
    wavefronts = features.get("wavefronts", 0.0)
    return (
        int(20 * features.get("tensor_share", 0.0)),
        int(2 * math.log2(1 + wavefronts)),
        int(features.get("registers", 0.0)) // 32,
    )


def is_near(a: Mapping[str, float] | None, b: Mapping[str, float] | None, tolerance: float = 1e-3) -> bool:
    """Returns whether two counter vectors are equal within a relative tolerance."""
    if a is None or b is None or a.keys() != b.keys():
        return False
    return all(math.isclose(a[name], b[name], rel_tol=tolerance, abs_tol=1e-12) for name in a)


def with_files(lines: Sequence[LineCounters], texts: Mapping[str, str]) -> tuple[LineCounters, ...]:
    """Names the template file of each line whose text occurs in exactly one file.

    Args:
        lines: Lines of a rendered source.
        texts: Text of each template file.
    """
    owners: dict[str, set[str]] = {}
    for file, text in texts.items():
        for line in text.splitlines():
            owners.setdefault(line.strip(), set()).add(file)
    return tuple(
        replace(line, file=next(iter(owners[line.text]))) if len(owners.get(line.text, ())) == 1 else line
        for line in lines
    )
