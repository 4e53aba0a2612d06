"""Damaged rows: named once in a warning and left out, so that they do not hide the sound ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from evoengine.documents.escaping import printable

MOST_WARNINGS: Final = 10
"""Maximum number of damaged rows that are named per open leaderboard."""

_T = TypeVar("_T")
_LONGEST_REASON: Final = 200
_LOG: Final = logging.getLogger(__name__)


class MalformedDataError(ValueError):
    """Stored data that cannot be decoded; the store reports it with the name of the file."""


class DamageReport:
    """Damaged rows of one database. Any thread may use it.

    Args:
        name: File, or name of the server's database.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: set[str] = set()

    def add(self, error: MalformedDataError) -> None:
        """Logs a damaged row unless it was logged before."""
        reason = printable(" ".join(str(error).split()))[:_LONGEST_REASON]
        if reason in self._known or len(self._known) > MOST_WARNINGS:
            return
        self._known.add(reason)
        if len(self._known) > MOST_WARNINGS:
            _LOG.warning("%s: further damaged rows are left out without a warning", self._name)
        else:
            _LOG.warning("%s: damaged data is left out: %s", self._name, reason)

    def sound(self, decode: Callable[[Any], _T], rows: Iterable[Any]) -> Iterator[_T]:
        """Yields the decoded rows without the damaged ones.

        Args:
            decode: Converts one row; raises :class:`MalformedDataError` for a damaged one.
            rows: Rows as the database returns them.
        """
        for row in rows:
            try:
                decoded = decode(row)
            except MalformedDataError as error:
                self.add(error)
            else:
                yield decoded
