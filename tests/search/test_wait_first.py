"""Waiting for the first of several futures."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from evoengine.search.wait_first import FirstCompleted


def futures(count: int) -> list[Future[Any]]:
    return [Future() for _ in range(count)]


def test_a_completed_future_is_found_at_once() -> None:
    one, two = futures(2)
    two.set_result(2)
    assert FirstCompleted().first({one, two}, 600) == {two}


def test_a_future_that_completes_meanwhile_ends_the_wait() -> None:
    waiting, (one, two) = FirstCompleted(), futures(2)
    assert waiting.first({one, two}, 0) == set()
    later = threading.Timer(0.2, one.set_exception, (ValueError(),))
    later.start()
    assert waiting.first({one, two}, 600) == {one}
    later.join()
    assert waiting.first({two}, 0) == set()


def test_futures_that_are_added_later_or_cancelled_count() -> None:
    waiting, (one, two, three) = FirstCompleted(), futures(3)
    assert waiting.first({one}, 0) == set()
    two.set_result(2)
    assert waiting.first({one, two}, 600) == {two}
    three.cancel()
    assert waiting.first({one, three}, 600) == {three}
