"""What a search says while it runs: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evoengine.model import Evaluation, Status
from evoengine.search.events import (
    ChallengeRejected,
    ChampionAccepted,
    Event,
    Finished,
    PromotionConfirmed,
    Recorded,
    Started,
    Stopping,
    WorkerLost,
)
from evoengine.search.settings import Progress

_PLAIN_EVERY_S: Final = 5.0
_BAR_CELLS: Final = 24


class ProgressDisplay:
    """An observer of the search that draws on stderr; use it in a ``with`` block around the search."""

    def __init__(self, console: Console, *, predicted: bool, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._predicted = predicted
        self._progress: Progress | None = None
        self._heard_s = time.monotonic()
        self._plain_s = 0.0
        self._note = "starting the workers"
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, transient=True, refresh_per_second=5)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def notify(self, event: Event) -> None:
        """Takes note of an event."""
        match event:
            case Started(progress=progress, requeued=requeued):
                self._hear(progress)
                self._note = ""
                if (progress.evaluated or requeued) and progress.evaluated < progress.budget:
                    again = f", {requeued} that were cut short go first" if requeued else ""
                    self._say(f"resuming: {progress.evaluated} evaluated already{again}")
            case Recorded(row_id=row_id, evaluation=evaluation, progress=progress):
                self._hear(progress)
                if self._verbose:
                    self._say(self._candidate(row_id, evaluation))
                if self._live is None and time.monotonic() - self._plain_s >= _PLAIN_EVERY_S:
                    self._plain_s = time.monotonic()
                    self._say(self._line(progress, 0.0))
            case ChampionAccepted(row_id=row_id, median_us=median_us, duel=duel, pending=pending):
                gain = "" if duel is None else f", {duel.gain:.1%} faster"
                title = "new leader" if pending else "new champion"
                self._say(f"{title}: row {row_id}, {self._us(median_us)}{gain}")
            case PromotionConfirmed(row_id=row_id, notes=notes):
                looked = "; ".join(notes) or "compute-sanitizer found nothing"
                self._say(f"row {row_id} is champion: {looked}")
            case ChallengeRejected(row_id=row_id, reason=reason) if reason:
                self._say(f"row {row_id} stays a challenger: {reason}")
            case WorkerLost(reason=reason):
                self._say(f"{reason}; the others go on")
            case Stopping(reason=reason, in_flight=in_flight):
                self._note = f"{reason}: waiting for {in_flight} under way"
                self._say(self._note)
            case Finished():
                self._note = ""
            case _:
                pass

    def _hear(self, progress: Progress) -> None:
        self._progress, self._heard_s = progress, time.monotonic()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def _candidate(self, row_id: int, evaluation: Evaluation) -> str:
        timing = evaluation.timing
        ended = evaluation.status.value if not evaluation.reason else f"{evaluation.status.value}: {evaluation.reason}"
        if evaluation.ok and timing is not None:
            ended = self._us(timing.median_us)
        return f"row {row_id}  {ended}  {evaluation.config.family}: {evaluation.config}"

    def _us(self, value_us: float) -> str:
        return f"{value_us:.2f} us{' predicted' if self._predicted else ''}"

    def _render(self) -> Text:
        if self._progress is None:
            return Text(self._note)
        return Text(self._line(self._progress, time.monotonic() - self._heard_s))

    def _line(self, progress: Progress, since_s: float) -> str:
        done = min(1.0, progress.evaluated / progress.budget)
        parts = [f"{progress.evaluated}/{progress.budget}", f"{progress.rate:.1f}/s"]
        if self._live is not None:
            filled = round(done * _BAR_CELLS)
            parts.insert(0, "█" * filled + "░" * (_BAR_CELLS - filled))
        if progress.eta_s is not None:
            parts.append(f"{_clock(max(0.0, progress.eta_s - since_s))} left")
        parts.append(self._best(progress))
        failed = {s: n for s, n in progress.counts.items() if s is not Status.OK}
        parts.append(f"{progress.counts.get(Status.OK, 0)} ok")
        parts.extend(f"{count} {status.value}" for status, count in failed.items())
        if self._note:
            parts.append(self._note)
        return "  ".join(parts)

    def _best(self, progress: Progress) -> str:
        if progress.best_us is None:
            return "none correct yet"
        speedup = "" if progress.best_speedup is None else f" ({progress.best_speedup:.2f}x SDPA)"
        return f"best {self._us(progress.best_us)}{speedup}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
