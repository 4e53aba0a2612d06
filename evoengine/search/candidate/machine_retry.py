"""Candidates that a fault of the machine interrupted: nothing is recorded, and each is tried again after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from evoengine.errors import MachineError
from evoengine.system.machine_faults import with_remedy

ATTEMPTS: Final = 4
"""Attempts of one candidate that the machine may interrupt before the search ends."""
PAUSE_S: Final = 0.5
"""Pause before the second attempt; it doubles before each further one."""


@dataclass(frozen=True)
class _Postponed:
    due_s: float
    retry: Callable[[], object]


class MachineRetries:
    """Candidates that wait for another attempt.

    Args:
        clock: Monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._faults: dict[str, int] = {}
        self._waiting: list[_Postponed] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def postpone(self, config_key: str, fault: MachineError, retry: Callable[[], object]) -> float:
        """Adds a candidate; returns the pause before its next attempt in seconds.

        Args:
            config_key: Key of the candidate's config.
            fault: Fault of the machine.
            retry: Function that submits the candidate again.

        Raises:
            MachineError: The machine does not recover; no candidate that it interrupted is recorded.
        """
        count = self._faults[config_key] = self._faults.get(config_key, 0) + 1
        if count == ATTEMPTS:
            raise type(fault)(f"{with_remedy(fault)}; then the same command goes on: nothing wrong was recorded")
        pause_s = PAUSE_S * 2.0 ** (count - 1)
        self._waiting.append(_Postponed(self._clock() + pause_s, retry))
        return pause_s

    def succeeded(self, config_key: str) -> None:
        """Reports an attempt that the machine did not interrupt."""
        self._faults.pop(config_key, None)

    def run_due(self) -> None:
        """Submits the candidates whose pause is over."""
        now_s = self._clock()
        due = [one for one in self._waiting if one.due_s <= now_s]
        self._waiting = [one for one in self._waiting if one.due_s > now_s]
        for one in due:
            one.retry()

    def clear(self) -> None:
        """Drops all candidates; the next search tries them again."""
        self._waiting.clear()
