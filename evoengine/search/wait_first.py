"""Repeated waiting for the first completed of many futures."""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any


class FirstCompleted:
    """Waits until at least one of several futures is done.

    It adds one callback to each future, once. ``concurrent.futures.wait`` locks all futures on every call, which takes
    longer than most of what a search does per completed future.
    """

    def __init__(self) -> None:
        self._completed = threading.Event()
        self._watched: AbstractSet[Future[Any]] = frozenset()

    def first(self, futures: AbstractSet[Future[Any]], timeout_s: float) -> set[Future[Any]]:
        """Waits for the first of some futures.

        Args:
            futures: Futures to wait for.
            timeout_s: Seconds to wait at most.

        Returns:
            The futures that are done; empty after a timeout.
        """
        for future in futures - self._watched:
            future.add_done_callback(self._notify)
        self._watched = frozenset(futures)
        self._completed.clear()  # before the check below: a future that completes in between sets the event again
        done = {future for future in futures if future.done()}
        if not done and self._completed.wait(timeout_s):
            done = {future for future in futures if future.done()}
        return done

    def _notify(self, _future: Future[Any]) -> None:
        self._completed.set()
