"""Wall seconds by stage of an evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

COMPILE_STAGES: Final = frozenset(("render", "compile", "admit"))
"""Stages that need no device; all others are a device worker's."""


class StageClock:
    """Sums wall seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time of its block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def device_seconds(stage_seconds: Mapping[str, float]) -> float:
    """Returns the seconds for which a device worker was busy, including comparisons on the host."""
    return sum(seconds for stage, seconds in stage_seconds.items() if stage not in COMPILE_STAGES)
