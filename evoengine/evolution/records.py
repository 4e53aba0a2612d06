"""Records and protocol shared by everything that proposes or judges a change of a template's source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from evoengine.model import Patch, Problem, Region, Resources, Value
from evoengine.target import Target

if TYPE_CHECKING:
    import random

    from evoengine.space.search_space import SearchSpace


@dataclass(frozen=True)
class Proposal:
    """Result of one operator: a patch, or configs of the parent, or both."""

    operator: str
    """Name of the operator, such as ``patches``. ``random`` and ``parent`` are the controls: random edits, and the
    unchanged parent."""
    parents: tuple[str, ...]
    """Family names of the parents, such as ``mma`` or ``mma~1a2b3c4d``; the patch applies to the first."""
    patch: Patch | None = None
    """Patch of the first parent; None for a proposal of configs only."""
    configs: tuple[Mapping[str, Value], ...] = ()
    """Sparse configs to evaluate first; names that are missing keep the values of the parent's best config."""
    origin: str = ""
    """Identifier of the transcript that produced the proposal; empty without one."""
    failure: str = ""
    """Reason why a model's reply holds no proposal; empty for every other proposal."""


@dataclass(frozen=True)
class RowSummary:
    """One evaluated config."""

    row: int
    """Row of the leaderboard; 0 for a kernel that has none."""
    config: Mapping[str, Value]
    status: str
    reason: str = ""
    """Message of the compiler, the resource gate or the parity gate for a row that failed."""
    time_us: float | None = None
    """Measured median or predicted time; None for a row that failed."""


@dataclass(frozen=True)
class LineCounters:
    """Emulator counters of one source line."""

    file: str
    """Path below ``templates/``; empty for lines of the rendered prologue."""
    line: int
    """Line number in the rendered source, from 1."""
    text: str
    instructions: int
    """Warp instructions."""
    global_bytes: int
    shared_wavefronts: int
    wasted_wavefronts: int
    """Wavefronts beyond those that conflict-free access needs."""


@dataclass(frozen=True)
class VariantSummary:
    """Variant with its best result."""

    family: str
    """Family name, such as ``mma~1a2b3c4d``; the family's own name for the unchanged source."""
    summary: str
    """Summary of its last patch."""
    operator: str
    """Operator that made it; empty for the unchanged family."""
    time_us: float | None
    """Best time of its tuned configs; None if none was correct."""
    patch: Patch | None = None
    """All its edits relative to the unchanged family; None for the family itself."""
    cell: tuple[int, ...] = ()
    """Archive cell."""


@dataclass(frozen=True)
class FailedProposal:
    """Earlier proposal that was rejected, with the reason."""

    operator: str
    summary: str
    stage: str
    """Stage that rejected it: ``reply``, ``apply``, ``space``, ``render``, ``compile``, ``gate`` or ``novelty``."""
    reason: str


@dataclass(frozen=True)
class Context:
    """Everything that a proposer sees."""

    problem: Problem
    target: Target
    family: str
    """Family of the parent, without its variant."""
    parent: VariantSummary
    regions: tuple[Region, ...]
    """Regions of the parent's files that a patch may change, in file order."""
    space: SearchSpace
    """Search space of the parent, with the tunables of its patches."""
    best: tuple[RowSummary, ...]
    """Best rows of the parent, fastest first."""
    failed: tuple[RowSummary, ...]
    """Last rows of the parent that failed."""
    lines: tuple[LineCounters, ...]
    """Counters of the parent's best kernel by source line, most expensive first; empty where none were counted."""
    resources: Resources | None
    """Registers, spills and shared memory of the parent's best kernel."""
    compiler_log: str
    """Report of ptxas on the parent's best kernel."""
    verdict: str
    """Verdict of the parity gate on the parent's best kernel, as one line."""
    picks: tuple[VariantSummary, ...]
    """Archive picks other than the parent: up to three best, then up to two diverse."""
    rejected: tuple[FailedProposal, ...]
    """Last rejected proposals, newest first."""
    mates: tuple[VariantSummary, ...] = ()
    """Variants of the same family that crossover may combine with the parent."""


class Proposer(Protocol):
    """Source of proposals: a classic operator, a language model, or a list in a test."""

    @property
    def name(self) -> str:
        """Name of the operator."""
        ...

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns proposals for one parent; an empty tuple when it has none."""
        ...

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Returns a corrected proposal; None when there is none. Called at most once per proposal.

        Args:
            context: Context of the rejected proposal.
            proposal: Rejected proposal.
            message: Message of the stage that rejected it: patch application, compiler, screen or gate.
        """
        ...
