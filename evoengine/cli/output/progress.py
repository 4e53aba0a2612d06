"""Progress of a search on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evoengine.documents.escaping import printable
from evoengine.engine.progress_lines import INTERVAL_S, ObserverFactory, ProgressLines
from evoengine.engine.search_plan import SearchPlan
from evoengine.search.events import Event, Observer, SilentObserver

_BAR_CELLS: Final = 24


class ProgressDisplay:
    """An observer that shows progress on a console. Use it in a ``with`` block around the search."""

    def __init__(self, console: Console, *, predicted: bool, verbose: bool = False) -> None:
        self._lines = ProgressLines(
            lambda text: console.print(text, markup=False),
            predicted=predicted,
            verbose=verbose,
            interval_s=None if console.is_terminal else INTERVAL_S,
        )
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=5)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def notify(self, event: Event) -> None:
        self._lines.notify(event)

    def _render(self) -> Text:
        share = self._lines.share_done
        status = printable(self._lines.status())
        if share is None:
            return Text(status)
        filled = round(share * _BAR_CELLS)
        return Text(f"{'█' * filled}{'░' * (_BAR_CELLS - filled)}  {status}")


def observe_on(console: Console, announce: Callable[[SearchPlan], Iterable[str]] = lambda _plan: ()) -> ObserverFactory:
    """Makes observers that show progress on a console, after lines about the plan; silent ones on a quiet console."""

    @contextmanager
    def observe(plan: SearchPlan, description: str) -> Iterator[Observer]:
        if console.quiet:
            yield SilentObserver()
            return
        for line in (*announce(plan), description):
            console.print(line, markup=False)
        with ProgressDisplay(console, predicted=plan.device.predicted) as display:
            yield display

    return observe
