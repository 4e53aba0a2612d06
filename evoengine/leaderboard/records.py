"""What goes into the leaderboard and what comes out of it, besides :class:`~evoengine.model.Evaluation`."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from evoengine.leaderboard.lineage import Kin
from evoengine.model import DeviceInfo, Duel, Evaluation, HardwareProfile, Problem, Status, Timing, Value, Workload


@dataclass(frozen=True)
class Scope:
    """Rows that may be ranked against each other; measured and predicted times never share one."""

    problem: str
    """:attr:`Problem.key <evoengine.model.Problem.key>`, or that of a workload."""
    device_kind: str
    device: str
    """GPU name, or the target's name for predictions."""
    arch: str
    predicted: bool
    method: str
    """Name of the objective: ``graph-warm``, ``graph-cold``, ``eager-warm``, ``eager-cold`` or ``model-v4``."""

    @property
    def key(self) -> str:
        """Canonical text of the scope."""
        kind = "predicted" if self.predicted else "measured"
        return f"{self.problem}|{self.device_kind}|{self.device}|{self.arch}|{kind}|{self.method}"


@dataclass(frozen=True)
class StudyKey:
    """What makes two searches the same study: the same command resumes it."""

    problem: Problem
    family: str
    """The family, or the names of several with commas between, sorted."""
    device: DeviceInfo
    """Driver and NVRTC versions are stored with each evaluation; they do not make another study."""
    method: str
    strategy: str
    seed: int
    space_key: str = ""
    """Hash of the search spaces and the templates: configs of another space must not be mixed in."""
    workload: Workload | None = None
    """What is searched for in the place of the problem, which is its first one then."""
    own_spaces: tuple[tuple[str, str], ...] = ()
    """Family and text of each search-space file that did not come with EvoEngine, so that rows can be built without it
    later; to identities ``space_key`` says the same."""

    @property
    def scope(self) -> Scope:
        """Where the study's rows are ranked."""
        d = self.device
        what = self.problem.key if self.workload is None else self.workload.key
        return Scope(what, d.kind, d.name, d.arch, d.predicted, self.method)

    @property
    def identity(self) -> str:
        """SHA-256 over everything that makes the study."""
        parts = [self.scope.key, self.family, self.strategy, self.seed, self.space_key]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Study:
    """A stored study."""

    id: int
    key: StudyKey
    created_at: datetime

    @property
    def scope(self) -> Scope:
        """Where its rows are ranked."""
        return self.key.scope

    @property
    def name(self) -> str:
        """Name of the Optuna study that goes with it."""
        return f"evoengine-{self.key.identity[:16]}"


class LeaseStatus(enum.Enum):
    """Answer to the wish to evaluate a config."""

    GRANTED = "granted"
    TAKEN = "taken"
    """It is evaluated, or another search works on it."""
    BUDGET_FULL = "budget_full"
    """What is evaluated and what is under way fill the budget."""


@dataclass(frozen=True)
class RowFilter:
    """Which rows to list; None means any."""

    problem: str | None = None
    device_kind: str | None = None
    device: str | None = None
    arch: str | None = None
    family: str | None = None
    method: str | None = None
    predicted: bool | None = None
    study_id: int | None = None
    statuses: tuple[Status, ...] = (Status.OK,)
    """Empty means every status."""
    limit: int | None = None
    """Rows per scope."""


@dataclass(frozen=True)
class Row:
    """One line of the leaderboard."""

    id: int
    rank: int | None
    """1 is the fastest correct row of its scope; None for rows without a time."""
    status: Status
    median_us: float | None
    predicted: bool
    device_kind: str
    device: str
    arch: str
    problem: str
    family: str
    config: Mapping[str, Value]
    registers: int | None
    spill_bytes: int | None
    smem_bytes: int | None
    max_error: float | None
    speedup: float | None
    champion: bool
    method: str
    low_us: float | None
    high_us: float | None
    code_hash: str
    reason: str
    study_id: int
    created_at: datetime
    energy_uj: float | None = None
    """Microjoules per call, where it was measured."""
    pending: bool = False
    """It beat the champion, and is champion itself once its inspection is complete."""


@dataclass(frozen=True)
class Challenge:
    """One entry of the champion history."""

    evaluation_id: int
    champion_id: int | None
    """Whom it challenged; None for the first champion of a scope."""
    accepted: bool
    """It won, and no inspection has found anything."""
    duel: Duel | None
    created_at: datetime
    pending: bool = False
    """It won, but its inspection was never completed: it was not champion. Either it still waits for that, or somebody
    beat it meanwhile."""


@dataclass(frozen=True)
class Record:
    """Everything known about one row, its source included."""

    row: Row
    study: Study
    evaluation: Evaluation
    trial_number: int | None
    driver: str
    nvrtc: str
    challenges: tuple[Challenge, ...]
    """Challenges that it made or met, oldest first."""
    lineage: tuple[Kin, ...] = ()
    """The row and its ancestors, as far as the study knows them."""
    profile: HardwareProfile | None = None
    """What hardware counters said last of its kernel; None where nobody asked them."""

    @property
    def own_evaluation(self) -> Evaluation:
        """The evaluation of the kernel whose source is stored.

        Of a workload that is the first problem's kernel: its own time instead of the mean, without samples, and no code
        hash, since the row's is one over the kernels of all problems.
        """
        timing = self.evaluation.timing
        if timing is None or not timing.parts:
            return self.evaluation
        first = timing.parts[0]
        own = Timing(
            *(first.median_us, first.low_us, first.high_us, timing.predicted, timing.method),
            baseline_us=first.baseline_us,
            baseline=first.baseline,
        )
        return replace(self.evaluation, timing=own, code_hash="")
