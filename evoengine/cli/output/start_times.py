"""How soon a search got going, counted from the start of its process."""

from __future__ import annotations

import time

from evoengine.search.events import Compiled, Event, Examined, Proposed, Recorded
from evoengine.system.processes import process_age_s

_NAMES = {Proposed: "proposed", Compiled: "compiled", Examined: "examined", Recorded: "row"}


class StartTimes:
    """An observer that notes when the first candidate reached each stage.

    Attributes:
        seconds: Seconds from the start of this process to the first proposal, the end of the first compilation, that of
            the first examination, and the first row; without stages that no candidate of this run reached.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._offset_s = process_age_s() - time.monotonic()

    def notify(self, event: Event) -> None:
        """Notes the first event of each stage."""
        name = _NAMES.get(type(event), "")
        if name and name not in self.seconds:
            self.seconds[name] = round(time.monotonic() + self._offset_s, 3)

    @property
    def lines(self) -> tuple[str, ...]:
        """The summary's line; none where this run added no row."""
        if "row" not in self.seconds:
            return ()
        times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return (f"start     {times}; from the start of the command to the first of each",)
