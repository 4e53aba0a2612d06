"""Decides whether crashes are recorded as the candidates' fault, or end the search because all crash alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from evoengine.errors import DefectError

AT_FIRST: Final = 8
"""Number of consecutive crashes with the same reason that end a search which has no other outcome yet."""
LATER: Final = 32
"""The limit once there was another outcome; it is larger, because related candidates may share a fault."""

_NUMBER: Final = re.compile(r"\d+")


class CrashWatch:
    """Delays the recording of crashes until it is known that the candidates caused them.

    A recorded crash is final: that candidate is never tried again. So consecutive crashes with the same reason are held
    here until another outcome shows that the candidates are at fault. If there is none, the search ends without
    recording them, and a later search, with the fault repaired, tries them again.

    Args:
        what: Name of what crashes, for the message.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._limit = AT_FIRST
        self._reason = ""
        self._held: list[Callable[[], object]] = []

    def crashed(self, reason: str, record: Callable[[], object]) -> None:
        """Adds a crash.

        Args:
            reason: Reason of the crash; numbers in it are ignored when reasons are compared.
            record: Function that records it.

        Raises:
            DefectError: Too many consecutive crashes have the same reason; none of them is recorded.
        """
        pattern = _NUMBER.sub("#", reason)
        if pattern != self._reason:
            self.settle()
        self._reason = pattern
        self._held.append(record)
        if len(self._held) >= self._limit:
            count = len(self._held)
            self._held.clear()
            raise DefectError(
                f"{self._what} crashed {count} times in a row in the same way, so no candidate is at fault: {reason}; "
                "none of these is recorded: repair the cause, and the same command tries them again"
            )

    def worked(self) -> None:
        """Adds an outcome that is not a crash."""
        self._limit = LATER
        self.settle()

    def stop(self) -> None:
        """Ends the watch early: the crashes that are held are recorded only if there was another outcome."""
        if self._limit == LATER:
            self.settle()
        self._held.clear()

    def settle(self) -> None:
        """Records the crashes that are held."""
        held, self._held = self._held, []
        for record in held:
            record()
