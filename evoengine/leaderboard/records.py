"""Records of the leaderboard: scopes, studies, rows, challenges."""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from evoengine.leaderboard.lineage import Kin
from evoengine.model import (
    Config,
    DeviceInfo,
    Duel,
    Evaluation,
    HardwareProfile,
    Problem,
    Status,
    Timing,
    Value,
    Variant,
    Workload,
)

REPLAY_PRIORS: Final = ", with "
"""Text before the names of the priors in the device name of a replay that uses some."""


def utc_now() -> datetime:
    """Returns the time in UTC without a zone, as all times are stored: SQLite keeps no zone."""
    return datetime.now(UTC).replace(tzinfo=None)


@dataclass(frozen=True)
class Scope:
    """Set of rows that are ranked against each other; measured and predicted times never share one."""

    problem: str
    """:attr:`Problem.key <evoengine.model.Problem.key>`, or that of a workload."""
    device_kind: str
    device: str
    """GPU name, or the target's name for predictions."""
    arch: str
    predicted: bool
    method: str
    """Name of the objective: ``graph-warm``, ``graph-cold``, ``eager-warm``, ``eager-cold`` or ``model-v18``."""

    @property
    def key(self) -> str:
        """Canonical text of the scope."""
        kind = "predicted" if self.predicted else "measured"
        return f"{self.problem}|{self.device_kind}|{self.device}|{self.arch}|{kind}|{self.method}"


@dataclass(frozen=True)
class StudyKey:
    """Identity of a study: the same command resumes it."""

    problem: Problem
    family: str
    """The family, or the names of several with commas between, sorted."""
    device: DeviceInfo
    """Driver and NVRTC versions are stored with each evaluation and are no part of the identity."""
    method: str
    strategy: str
    seed: int
    space_key: str = ""
    """Hash of the search spaces and the templates, since configs of different spaces must not mix."""
    workload: Workload | None = None
    """Workload that is optimised for; ``problem`` is its first problem then."""
    own_spaces: tuple[tuple[str, str], ...] = ()
    """Family and text of each custom search-space file, so that rows can be rebuilt without it; the identity covers
    them by ``space_key``."""

    @property
    def scope(self) -> Scope:
        """Scope in which the study's rows are ranked."""
        d = self.device
        what = self.problem.key if self.workload is None else self.workload.key
        return Scope(what, d.kind, d.name, d.arch, d.predicted, self.method)

    @property
    def identity(self) -> str:
        """SHA-256 over all parts of the identity."""
        return study_identity(self.scope, self.family, self.strategy, self.seed, self.space_key)


def study_identity(scope: Scope, family: str, strategy: str, seed: int, space_key: str) -> str:
    """Returns the identity of a study, which all schema versions compute alike."""
    return hashlib.sha256(json.dumps([scope.key, family, strategy, seed, space_key]).encode()).hexdigest()


@dataclass(frozen=True)
class Study:
    """A stored study."""

    id: int
    key: StudyKey
    created_at: datetime

    @property
    def scope(self) -> Scope:
        """Scope in which its rows are ranked."""
        return self.key.scope

    @property
    def name(self) -> str:
        """Short identity, the same in every file; until version 6 also the name of the Optuna study."""
        return f"evoengine-{self.key.identity[:16]}"

    @property
    def title(self) -> str:
        """Readable name of the Optuna study, unique in the file: ``1x8x512x64-fp16 l4-predicted random seed 0 #3``."""
        scope, key = self.scope, self.key
        device = re.sub(r"[^a-z0-9.]+", "-", scope.device.removeprefix("NVIDIA ").lower()).strip("-")
        times = "predicted" if scope.predicted else "measured"
        kind = f"{scope.device_kind}-" if scope.device_kind == "replay" else ""
        return f"{scope.problem} {kind}{device}-{times} {key.strategy} seed {key.seed} #{self.id}"


class LeaseStatus(enum.Enum):
    """Result of the request for a lease on a config."""

    GRANTED = "granted"
    TAKEN = "taken"
    """The config is evaluated, or another search holds its lease."""
    BUDGET_FULL = "budget_full"
    """Evaluations and leases together fill the budget."""


@dataclass(frozen=True)
class RowFilter:
    """Selection of rows; None means any."""

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
    """The row beat the champion and becomes champion when its inspection is complete."""

    @property
    def full_config(self) -> Config:
        """The config with its family."""
        return Config.of(self.family, self.config)

    @property
    def scope(self) -> Scope:
        """The ranking that the row belongs to."""
        return Scope(self.problem, self.device_kind, self.device, self.arch, self.predicted, self.method)


@dataclass(frozen=True)
class Challenge:
    """One entry of the champion history."""

    evaluation_id: int
    champion_id: int | None
    """Row that was challenged; None for the first champion of a scope."""
    accepted: bool
    """Whether the challenger won and passed its inspection."""
    duel: Duel | None
    created_at: datetime
    pending: bool = False
    """Whether the challenger won without a completed inspection, so it was not champion: it still waits, or another row
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
    """Challenges with the row as challenger or champion, oldest first."""
    lineage: tuple[Kin, ...] = ()
    """The row and its ancestors in the study."""
    profile: HardwareProfile | None = None
    """Newest hardware counters of its kernel; None if they were never read."""
    variant: Variant | None = None
    """Variant that the row's family names; None for a family's own source, and where the leaderboard lacks it."""

    @property
    def own_evaluation(self) -> Evaluation:
        """Evaluation of the kernel whose source is stored.

        For a workload this is the first problem's kernel: its own time instead of the mean, no samples, and no code
        hash, since the row's hash covers the kernels of all problems.
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
