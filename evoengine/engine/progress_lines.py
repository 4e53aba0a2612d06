"""Progress of a search as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from evoengine.model import Evaluation, Status
from evoengine.search.candidate.results import WorkEstimate
from evoengine.search.events import (
    ChallengeRejected,
    ChampionAccepted,
    Event,
    Finished,
    Observer,
    Postponed,
    PromotionConfirmed,
    Recorded,
    SlowFamily,
    Started,
    Stopping,
    WorkerLost,
)
from evoengine.search.settings import Progress

if TYPE_CHECKING:
    from evoengine.engine.search_plan import SearchPlan

INTERVAL_S: Final = 5.0
_NOTABLE_SHARE: Final = 0.5
"""Share of the work on the problem itself from which a smaller problem is suggested."""
ObserverFactory = Callable[["SearchPlan", str], AbstractContextManager[Observer]]
"""Makes the observer of a search, given its plan and a line that describes it."""


class ProgressLines:
    """An observer that writes what happens, and every few seconds how far the search is.

    Args:
        write: Function that receives each line, without a line break; ``print`` in a notebook.
        predicted: Whether times are predictions.
        verbose: Whether to write a line for every candidate.
        interval_s: Seconds between two lines about the progress; None for no such lines.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        predicted: bool = False,
        verbose: bool = False,
        interval_s: float | None = INTERVAL_S,
    ) -> None:
        self._write = write
        self._predicted = predicted
        self._verbose = verbose
        self._interval_s = interval_s
        self._written_s = 0.0
        self._progress: Progress | None = None
        self._received_s = time.monotonic()
        self._note = "starting the workers"

    def notify(self, event: Event) -> None:
        """Writes the lines of an event."""
        match event:
            case Started(progress=progress, requeued=requeued):
                self._receive(progress)
                self._note = ""
                if (progress.evaluated or requeued) and progress.evaluated < progress.budget:
                    again = f", {requeued} interrupted candidates are evaluated first" if requeued else ""
                    self._write(f"resuming: {progress.evaluated} already evaluated{again}")
            case Recorded(row_id=row_id, evaluation=evaluation, progress=progress):
                self._receive(progress)
                if self._verbose:
                    self._write(self._candidate(row_id, evaluation))
                if self._interval_s is not None and time.monotonic() - self._written_s >= self._interval_s:
                    self._written_s = time.monotonic()
                    self._write(self.status())
            case ChampionAccepted(row_id=row_id, median_us=median_us, duel=duel, pending=pending):
                gain = "" if duel is None else f", {duel.gain:.1%} faster"
                title = "new leader" if pending else "new champion"
                self._write(f"{title}: row {row_id}, {self._us(median_us)}{gain}")
            case PromotionConfirmed(row_id=row_id, notes=notes):
                self._write(f"row {row_id} is champion: {'; '.join(notes) or 'compute-sanitizer found nothing'}")
            case ChallengeRejected(row_id=row_id, reason=reason) if reason:
                self._write(f"row {row_id} stays a challenger: {reason}")
            case WorkerLost() | Postponed() | SlowFamily():
                self._write(_trouble(event))
            case Stopping(reason=reason, in_flight=in_flight):
                self._note = f"{reason}: waiting for {in_flight} candidates in flight"
                self._write(self._note)
            case Finished():
                self._note = ""
            case _:
                pass

    @property
    def share_done(self) -> float | None:
        """Share of the budget that is evaluated; None before the search has started."""
        return None if self._progress is None else min(1.0, self._progress.evaluated / self._progress.budget)

    def status(self) -> str:
        """One line: candidates, rate, time left, best time and the count of each status."""
        progress = self._progress
        if progress is None:
            return self._note
        parts = [f"{progress.evaluated}/{progress.budget}", f"{progress.rate:.1f}/s"]
        if progress.eta_s is not None:
            since_s = time.monotonic() - self._received_s
            parts.append(f"{_clock(max(0.0, progress.eta_s - since_s))} left")
        parts.append(self._best(progress))
        failed = {status: count for status, count in progress.counts.items() if status is not Status.OK}
        parts.append(f"{progress.counts.get(Status.OK, 0)} ok")
        parts.extend(f"{count} {status.value}" for status, count in failed.items())
        return "  ".join([*parts, *filter(None, [self._note])])

    def _receive(self, progress: Progress) -> None:
        self._progress, self._received_s = progress, time.monotonic()

    def _candidate(self, row_id: int, evaluation: Evaluation) -> str:
        timing = evaluation.timing
        outcome = evaluation.status.value
        if evaluation.ok and timing is not None:
            outcome = self._us(timing.median_us)
        elif evaluation.reason:
            outcome += f": {evaluation.reason}"
        return f"row {row_id}  {outcome}  {evaluation.config.family}: {evaluation.config}"

    def _us(self, value_us: float) -> str:
        return f"{value_us:.2f} us{' predicted' if self._predicted else ''}"

    def _best(self, progress: Progress) -> str:
        if progress.best_us is None:
            return "none correct yet"
        speedup = "" if progress.best_speedup is None else f" ({progress.best_speedup:.2f}x SDPA)"
        return f"best {self._us(progress.best_us)}{speedup}"


def _trouble(event: WorkerLost | Postponed | SlowFamily) -> str:
    """One line about a fault that the search survives, or about a long wait."""
    if isinstance(event, SlowFamily):
        return _slow(event.family, event.estimate)
    if isinstance(event, WorkerLost):
        return f"{event.reason}; any other workers continue"
    return f"{event.reason}; the candidate is tried again in {event.pause_s:.1f} s"


def _slow(family: str, estimate: WorkEstimate) -> str:
    """One line about a family whose kernels take long on the emulator, with what would make a difference."""
    millions = max(1, round(estimate.warp_instructions / 1e6))
    remedy = "a GPU or a smaller --problem is faster"
    if estimate.problem_share < _NOTABLE_SHARE:
        remedy = "most of them in parity cases that every problem has; a GPU is faster"
    return (
        f"family {family}: about {estimate.seconds:,.0f} s per candidate on the emulator ({millions:,} million warp "
        f"instructions): {remedy}"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
