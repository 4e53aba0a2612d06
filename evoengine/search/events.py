"""Events that a search reports to its observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from evoengine.model import Config, Duel, Evaluation, Status
from evoengine.search.candidate.results import WorkEstimate
from evoengine.search.settings import Progress, SearchResult


@dataclass(frozen=True)
class Started:
    """The search starts or resumes."""

    progress: Progress
    requeued: int
    """Unfinished candidates of a killed search, which are proposed again."""


@dataclass(frozen=True)
class Proposed:
    """A config was submitted to the compiler."""

    config: Config
    number: int


@dataclass(frozen=True)
class Compiled:
    """The compilation of a config ended."""

    config: Config
    status: Status


@dataclass(frozen=True)
class Examined:
    """The examination of a kernel on the device ended."""

    config: Config
    status: Status


@dataclass(frozen=True)
class Recorded:
    """An evaluation was stored."""

    row_id: int
    evaluation: Evaluation
    progress: Progress


@dataclass(frozen=True)
class ChampionAccepted:
    """A challenger was accepted as champion, or as leader until its inspection is complete."""

    row_id: int
    median_us: float
    duel: Duel | None
    """None for the first champion of a scope."""
    pending: bool = False
    """Whether it becomes champion only when its inspection is complete."""


@dataclass(frozen=True)
class PromotionConfirmed:
    """The inspection of a pending leader completed without a finding: the row is champion."""

    row_id: int
    notes: tuple[str, ...] = ()
    """Checks that could not be made, with reasons."""


@dataclass(frozen=True)
class ChallengeRejected:
    """A challenger did not prove its speed-up, or failed its inspection."""

    row_id: int
    duel: Duel | None
    reason: str
    """Reason of the rejection; empty if the challenger lost its duel."""


@dataclass(frozen=True)
class WorkerLost:
    """A worker could not be restarted; the search continues with any others."""

    reason: str


@dataclass(frozen=True)
class Postponed:
    """The machine failed while it evaluated a candidate, which is tried again; nothing is recorded."""

    config_key: str
    reason: str
    pause_s: float


@dataclass(frozen=True)
class SlowFamily:
    """The kernels of a family take long on the emulator; reported once per family."""

    family: str
    estimate: WorkEstimate
    """Work for one candidate."""


@dataclass(frozen=True)
class Stopping:
    """The search starts no more candidates and waits for those in flight."""

    reason: str
    in_flight: int


@dataclass(frozen=True)
class Finished:
    """The search ended."""

    result: SearchResult


Event = (
    Started
    | Proposed
    | Compiled
    | Examined
    | Recorded
    | ChampionAccepted
    | PromotionConfirmed
    | ChallengeRejected
    | WorkerLost
    | Postponed
    | SlowFamily
    | Stopping
    | Finished
)


class Observer(Protocol):
    """Receives the events of a search, for example to display them."""

    def notify(self, event: Event) -> None:
        """Receives an event. The search loop calls it for every event, in order; it must return quickly."""


class SilentObserver:
    """An :class:`Observer` that ignores all events."""

    def notify(self, event: Event) -> None: ...


class Observers:
    """Several observers as one; each receives every event, in their order.

    Args:
        observers: The observers.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def notify(self, event: Event) -> None:
        for observer in self._observers:
            observer.notify(event)
