"""Results of the jobs that a search submits: compilations, examinations and inspections."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from evoengine.kernel.records import Binary, Kernel, Source
from evoengine.model import Config, Evaluation, Status, Timing, Verdict


@dataclass(frozen=True)
class Candidate:
    """A compiled config: one kernel for each problem of the search."""

    kernels: tuple[Kernel, ...]

    @property
    def config(self) -> Config:
        """Config that all kernels were rendered from."""
        return self.kernels[0].config

    @property
    def code_hash(self) -> str:
        """Hash of the machine code for all problems."""
        return _joint_code_hash([kernel.binary for kernel in self.kernels])


def _joint_code_hash(binaries: list[Binary]) -> str:
    """Hash of the machine code of several binaries: equal hashes mean the same kernel for every problem.

    Args:
        binaries: Binaries of one config, one per problem. A single one keeps its own hash; none give an empty text.
    """
    if len(binaries) < 2:
        return binaries[0].code_hash if binaries else ""
    return hashlib.sha256("".join(binary.code_hash for binary in binaries).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Compilation:
    """Outcome of rendering, compiling and the resource gate for one config."""

    config: Config
    status: Status
    """OK means that the candidate can be examined: nothing has run yet."""
    reason: str = ""
    sources: tuple[Source, ...] = ()
    """Sources rendered so far, one per problem."""
    binaries: tuple[Binary, ...] = ()
    """Binaries compiled so far, including one that failed the resource gate."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    admitted: bool = False
    """Whether a GPU may run the kernels although their sources are untrusted (see :class:`Admission`)."""

    @property
    def source(self) -> Source | None:
        """Source for the first problem, which rows store."""
        return self.sources[0] if self.sources else None

    @property
    def binary(self) -> Binary | None:
        """Binary for the first problem, whose resources rows store."""
        return self.binaries[0] if self.binaries else None

    @property
    def code_hash(self) -> str:
        """Hash of the machine code compiled so far; empty when there is none."""
        return _joint_code_hash(list(self.binaries))

    @property
    def candidate(self) -> Candidate | None:
        """Candidate to examine; None unless the status is OK."""
        if self.status is not Status.OK or not self.binaries or len(self.sources) != len(self.binaries):
            return None
        pairs = zip(self.sources, self.binaries, strict=True)
        return Candidate(tuple(Kernel(source, binary, admitted=self.admitted) for source, binary in pairs))

    @property
    def kernel(self) -> Kernel | None:
        """Kernel for the first problem; None unless the status is OK."""
        return None if self.candidate is None else self.candidate.kernels[0]


@dataclass(frozen=True)
class Admission:
    """Outcome of the emulation that decides whether a GPU may run a candidate whose source is untrusted."""

    status: Status
    """OK admits it."""
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Examination:
    """Outcome of the parity gate and the timing of one candidate on a device."""

    status: Status
    reason: str = ""
    verdict: Verdict | None = None
    timing: Timing | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Remarks for the reader of the row; they decided nothing."""


@dataclass(frozen=True)
class WorkEstimate:
    """Estimate of the emulator's work for one candidate, extrapolated from a small parity case."""

    warp_instructions: int
    seconds: float
    """CPU seconds of one core."""
    problem_share: float
    """Share of the problem itself, which a smaller problem would reduce; the rest are parity cases of fixed size."""

    def plus(self, other: WorkEstimate) -> WorkEstimate:
        """Returns the estimate for the problems of both."""
        seconds = self.seconds + other.seconds
        own_s = self.seconds * self.problem_share + other.seconds * other.problem_share
        instructions = self.warp_instructions + other.warp_instructions
        return WorkEstimate(instructions, seconds, own_s / seconds if seconds else 0.0)


@dataclass(frozen=True)
class Inspection:
    """Outcome of the additional checks that a candidate must pass to become champion."""

    finding: str = ""
    """Reason why it must not be champion; empty when nothing was found."""
    notes: tuple[str, ...] = ()
    """Checks that could not be made, and why."""
    seconds: float = field(default=0.0, compare=False)
    """Time for which the candidate's own device was busy."""

    def joined(self, other: Inspection) -> Inspection:
        """Returns both as one; the first finding is kept, and each note once."""
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        return Inspection(self.finding or other.finding, notes, self.seconds + other.seconds)


def conclude(compilation: Compilation, examination: Examination | None = None) -> Evaluation:
    """Returns the evaluation to store for a candidate.

    Args:
        compilation: Outcome of the compilation.
        examination: Outcome of the examination; None when there was none.

    Raises:
        ValueError: The compilation succeeded, but there is no examination.
    """
    if examination is None and compilation.status is Status.OK:
        raise ValueError("a compiled candidate must be examined before it is concluded")
    source, binary = compilation.source, compilation.binary
    seconds = dict(compilation.stage_seconds) | dict(examination.stage_seconds if examination else {})
    return Evaluation(
        config=compilation.config,
        status=examination.status if examination else compilation.status,
        reason=examination.reason if examination else compilation.reason,
        source_hash=source.source_hash if source else "",
        code_hash=compilation.code_hash,
        template_hash=source.template_hash if source else "",
        source=source.text if source else "",
        resources=binary.resources if binary else None,
        verdict=examination.verdict if examination else None,
        timing=examination.timing if examination else None,
        stage_seconds=seconds,
        notes=examination.notes if examination else (),
    )
