"""What an observer of a search hears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from evoengine.model import Config, Duel, Evaluation, Status
from evoengine.search.settings import Progress, SearchResult


@dataclass(frozen=True)
class Started:
    """The search begins, or goes on."""

    progress: Progress
    requeued: int
    """Candidates that a killed search left undone."""


@dataclass(frozen=True)
class Proposed:
    """A config goes to the compiler."""

    config: Config
    number: int


@dataclass(frozen=True)
class Compiled:
    """The compiler is done with a config."""

    config: Config
    status: Status


@dataclass(frozen=True)
class Examined:
    """The device is done with a kernel."""

    config: Config
    status: Status


@dataclass(frozen=True)
class Recorded:
    """An evaluation is stored for good."""

    row_id: int
    evaluation: Evaluation
    progress: Progress


@dataclass(frozen=True)
class ChampionAccepted:
    """There is a new champion, or one that is to be."""

    row_id: int
    median_us: float
    duel: Duel | None
    """None for the first champion of a scope."""
    pending: bool = False
    """It leads, and is champion once its inspection is complete."""


@dataclass(frozen=True)
class PromotionConfirmed:
    """The inspection of a row that led is complete, and found nothing: it is champion."""

    row_id: int
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""


@dataclass(frozen=True)
class ChallengeRejected:
    """A challenger did not prove its gain, or did not pass its inspection."""

    row_id: int
    duel: Duel | None
    reason: str
    """Why, where it was not the duel."""


@dataclass(frozen=True)
class WorkerLost:
    """A worker, and the device that is its own, does not come back; the others go on."""

    reason: str


@dataclass(frozen=True)
class Stopping:
    """The search begins nothing new and waits for what is under way."""

    reason: str
    in_flight: int


@dataclass(frozen=True)
class Finished:
    """The search is over."""

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
    | Stopping
    | Finished
)


class Observer(Protocol):
    """Watches a search, for example to draw it."""

    def notify(self, event: Event) -> None:
        """Called from the loop for every event, in order; must be quick."""


class SilentObserver:
    """Watches and says nothing."""

    def notify(self, event: Event) -> None:
        """Ignores the event."""
