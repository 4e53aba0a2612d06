"""FirstCompleted for the first of many futures, again and again."""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any


class FirstCompleted:
    """Waits until one of some futures is done.

    Each is asked once to tell. ``concurrent.futures.wait`` locks all of them each time, which takes longer than most of
    what a search does when one is done.
    """

    def __init__(self) -> None:
        self._news = threading.Event()
        self._asked: AbstractSet[Future[Any]] = frozenset()

    def first(self, futures: AbstractSet[Future[Any]], timeout_s: float) -> set[Future[Any]]:
        """Those that are done, as soon as one is; none where that takes longer than ``timeout_s``."""
        for future in futures - self._asked:
            future.add_done_callback(self._tell)
        self._asked = frozenset(futures)
        self._news.clear()  # whoever tells from here on is heard, and whoever told before is found done
        done = {future for future in futures if future.done()}
        if not done and self._news.wait(timeout_s):
            done = {future for future in futures if future.done()}
        return done

    def _tell(self, _future: Future[Any]) -> None:
        self._news.set()
