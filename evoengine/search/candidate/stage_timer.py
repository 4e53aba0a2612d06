"""Wall seconds by stage of an evaluation, and which stages a device is taken by."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

COMPILE_STAGES: Final = frozenset(("render", "compile"))
"""Stages of a compile worker; all others are a device worker's."""


class StageClock:
    """Sums up wall seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time that its block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def device_seconds(stage_seconds: Mapping[str, float]) -> float:
    """Seconds in which a device worker had a candidate in hand, judging its output on the host included."""
    return sum(seconds for stage, seconds in stage_seconds.items() if stage not in COMPILE_STAGES)
