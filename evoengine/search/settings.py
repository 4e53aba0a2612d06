"""What a search is told, and what it says at its end."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from evoengine.leaderboard.records import Row
from evoengine.model import Status
from evoengine.search.candidate.stage_timer import device_seconds
from evoengine.search.measurement_stats import MeasurementStats


@dataclass(frozen=True)
class SearchSettings:
    """The settings of one search."""

    budget: int = 500
    """Distinct candidates that the study shall hold in the end."""
    strategy: str = "evolution"
    seed: int = 0
    accept_threshold: float = 0.03
    """Share of time that a challenger must save to become champion."""
    elite_k: int = 10
    """Elites that the result names."""
    lookahead: int = 2
    """Compiled candidates that may wait for the device, so that it never waits for them."""
    head: int = 0
    """First proposals of a study that depend on no outcome, where that is more than the loop would make."""
    deadline_s: float | None = None
    """Seconds after which no new candidate is begun; None for no limit."""
    drain_s: float = 10.0
    """Seconds that candidates on the device get to finish once the search was asked to stop."""
    confirm_s: float = 30.0
    """Seconds that the inspection of who leads gets once time is up; Ctrl-C leaves it what is left of the above."""


class StopReason(enum.Enum):
    """Why a search ended."""

    BUDGET_REACHED = "budget reached"
    SPACE_EXHAUSTED = "space exhausted"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    evaluated: int
    """Distinct candidates in the study, earlier runs and other processes included."""
    budget: int
    in_flight: int
    new: int
    """Distinct candidates that this run added."""
    duplicates: int
    """Duplicates that this run met; they cost no budget."""
    counts: Mapping[Status, int]
    """Evaluations of the study by status."""
    elapsed_s: float
    best_us: float | None
    """Fastest correct candidate of the scope."""
    best_id: int | None
    best_speedup: float | None
    """Its baseline over its time; None where nothing was measured."""

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
    """What a search leaves behind."""

    stop: StopReason
    progress: Progress
    champion: Row | None
    elites: tuple[Row, ...]
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage, summed over the candidates of this run; workers run at the same time."""
    overhead_s: float = 0.0
    """CPU seconds of the loop's own thread in this run: strategy, store, bookkeeping."""
    devices: int = 0
    """Device workers that examined at the same time, those that were lost meanwhile included."""
    lost: tuple[str, ...] = ()
    """One line for each device that did not come back."""
    measurements: MeasurementStats = field(default_factory=MeasurementStats)
    """What the measurements of this run were like."""
    skipped: int = 0
    """Configs that this run passed over: the latency model expects them to be far slower than the best."""
    leader: Row | None = None
    """Who has beaten the champion and waits for the end of its inspection, which a later search does."""

    @property
    def device_share(self) -> float:
        """Seconds in which each device worker had a candidate in hand, summed, over their number times the run's.

        One that was lost meanwhile counts to the end.
        """
        available_s = self.progress.elapsed_s * self.devices
        return min(1.0, device_seconds(self.stage_seconds) / available_s) if available_s > 0 else 0.0

    @property
    def overhead_share(self) -> float:
        """Share of the run in which the loop's own thread was at work."""
        return self.overhead_s / self.progress.elapsed_s if self.progress.elapsed_s > 0 else 0.0

    @property
    def overhead_of_work(self) -> float:
        """The loop's own work as a share of all: its own and that of the stages."""
        work_s = self.overhead_s + sum(self.stage_seconds.values())
        return self.overhead_s / work_s if work_s > 0 else 0.0

    @property
    def overhead_ms_per_trial(self) -> float:
        """The loop's own work per candidate of this run, duplicates included."""
        trials = self.progress.new + self.progress.duplicates
        return 1e3 * self.overhead_s / trials if trials else 0.0
