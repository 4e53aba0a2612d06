"""The settings, progress and result of a search."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from evoengine.leaderboard.records import Row
from evoengine.model import ACCEPT_THRESHOLD, DeviceInfo, Status
from evoengine.search.candidate.stage_timer import device_seconds
from evoengine.search.measurement_stats import MeasurementStats

_GPU_SUBMITTED: Final = 8
"""Candidates for each GPU: one runs, its worker has the next, and the others wait while this process is busy."""


@dataclass(frozen=True)
class SearchSettings:
    """The settings of one search."""

    budget: int
    """Distinct candidates of the study at which the search ends."""
    strategy: str = "evolution"
    seed: int = 0
    accept_threshold: float = ACCEPT_THRESHOLD
    """Minimum relative speed-up needed to replace the champion; infinite for a study without champion."""
    elects_first: bool = False
    """Whether a scope's first champion is elected late, among all candidates; otherwise it is the first correct one."""
    elect_early_from: int = 200
    """Budget from which the leader is inspected before the end; in a short search the leader changes until late."""
    elite_k: int = 10
    """Number of elites in the result."""
    compile_queue: int = 2
    """Candidates that may wait for a compiler, so that none idles between two proposals."""
    submitted: int = 2
    """Candidates that each device worker has or that wait for it, so that it does not wait for the search."""
    head: int = 0
    """Minimum number of first proposals of a study that depend on no outcome."""
    in_order: bool = True
    """Whether proposals depend on outcomes in the order of their trials, so that a search can be repeated."""
    deadline_s: float | None = None
    """Seconds after which no new candidate is started; None for no limit."""
    drain_s: float = 10.0
    """Seconds for candidates on the device to finish after a request to stop."""
    confirm_s: float = 30.0
    """Seconds for the inspection of the leader after the time limit; after Ctrl-C it has the rest of ``drain_s``."""

    def paced_for(self, device: DeviceInfo) -> SearchSettings:
        """Returns the settings for a device; a GPU takes milliseconds, and never measures the same time twice."""
        return replace(self, in_order=False, submitted=_GPU_SUBMITTED) if device.kind == "cuda" else self


class StopReason(enum.Enum):
    """Why a search ended."""

    BUDGET_REACHED = "budget reached"
    SPACE_EXHAUSTED = "space exhausted"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class Progress:
    """Progress of a search."""

    evaluated: int
    """Distinct candidates in the study, including those of earlier runs and other processes."""
    budget: int
    in_flight: int
    new: int
    """Distinct candidates that this run added."""
    duplicates: int
    """Duplicates found by this run; they use no budget."""
    counts: Mapping[Status, int]
    """Evaluations of the study by status."""
    elapsed_s: float
    best_us: float | None
    """Time of the fastest correct candidate of the scope."""
    best_id: int | None
    best_speedup: float | None
    """Baseline time over its time; None where nothing was measured."""

    @property
    def rate(self) -> float:
        """Distinct candidates per second of this run."""
        return self.new / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds until the budget is reached at this rate; None before there is a rate."""
        return (self.budget - self.evaluated) / self.rate if self.new else None


@dataclass(frozen=True)
class SearchResult:
    """Result of a search."""

    stop: StopReason
    progress: Progress
    champion: Row | None
    elites: tuple[Row, ...]
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage, summed over the candidates of this run; workers run at the same time."""
    overhead_s: float = 0.0
    """CPU seconds of the search loop's thread in this run: strategy, database, bookkeeping."""
    devices: int = 0
    """Number of concurrent device workers, including those that were lost."""
    lost: tuple[str, ...] = ()
    """One line for each device that could not be restarted."""
    measurements: MeasurementStats = field(default_factory=MeasurementStats)
    """Statistics of this run's measurements."""
    skipped: int = 0
    """Configs pruned in this run because the latency model predicts them to be far slower than the best."""
    leader: Row | None = None
    """Row that has beaten the champion but whose inspection is not complete; a later search completes it."""
    best: Row | None = None
    """Fastest correct row that this run added; None if it added none."""
    difference: str = ""
    """Reason why ``best`` is not the champion; empty if it is, or if there is no ``best``."""
    accept_threshold: float = ACCEPT_THRESHOLD
    """Minimum relative speed-up that this run required of a challenger."""

    @property
    def device_share(self) -> float:
        """Share of the device workers' time in which they had a candidate; a lost worker counts until the end."""
        available_s = self.progress.elapsed_s * self.devices
        return min(1.0, device_seconds(self.stage_seconds) / available_s) if available_s > 0 else 0.0

    @property
    def overhead_share(self) -> float:
        """CPU time of the search loop's thread as a share of the run."""
        return self.overhead_s / self.progress.elapsed_s if self.progress.elapsed_s > 0 else 0.0

    @property
    def overhead_of_work(self) -> float:
        """CPU time of the search loop as a share of all work: its own and that of all stages."""
        work_s = self.overhead_s + sum(self.stage_seconds.values())
        return self.overhead_s / work_s if work_s > 0 else 0.0

    @property
    def overhead_ms_per_trial(self) -> float:
        """CPU milliseconds of the search loop per candidate of this run, duplicates included."""
        trials = self.progress.new + self.progress.duplicates
        return 1e3 * self.overhead_s / trials if trials else 0.0
