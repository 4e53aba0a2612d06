"""Whose fault is a crash? One candidate's, as long as others fare differently; ours, when all of them crash alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from evoengine.errors import DefectError

AT_FIRST: Final = 8
"""Crashes alike that end a search in which nothing else has happened yet."""
LATER: Final = 32
"""And one in which something else has: candidates that are bred from each other may share a fault."""

_NUMBER: Final = re.compile(r"\d+")


class CrashWatch:
    """Holds crashes back from the store until it is known that they are not ours.

    A row is for good: a candidate that was recorded as crashed is never tried again. So crashes that follow one another
    and tell the same story wait here, until another outcome shows that the fault is theirs. If none does, the search
    ends, and a later one, with the fault mended, tries them anew.

    Args:
        what: what crashes, for the message.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._limit = AT_FIRST
        self._story = ""
        self._held: list[Callable[[], object]] = []

    def crashed(self, reason: str, record: Callable[[], object]) -> None:
        """One more crash.

        Args:
            reason: its story; numbers in it do not matter.
            record: stores it.

        Raises:
            DefectError: too many tell the same story; none of them is recorded.
        """
        story = _NUMBER.sub("#", reason)
        if story != self._story:
            self.settle()
        self._story = story
        self._held.append(record)
        if len(self._held) >= self._limit:
            count = len(self._held)
            self._held.clear()
            raise DefectError(
                f"{self._what} crashed {count} times in a row in the same way, which no candidate explains: {reason}; "
                "none of these is recorded: mend it, and the same command tries them again"
            )

    def worked(self) -> None:
        """Something else happened."""
        self._limit = LATER
        self.settle()

    def settle(self) -> None:
        """Records what is held."""
        held, self._held = self._held, []
        for record in held:
            record()
