"""FirstCompleted for the first of some futures."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from evoengine.search.wait_first import FirstCompleted


def futures(count: int) -> list[Future[Any]]:
    return [Future() for _ in range(count)]


def test_what_is_done_already_is_found_at_once() -> None:
    one, two = futures(2)
    two.set_result(2)
    assert FirstCompleted().first({one, two}, 600) == {two}


def test_one_that_ends_while_it_waits_wakes_it() -> None:
    waiting, (one, two) = FirstCompleted(), futures(2)
    assert waiting.first({one, two}, 0) == set()
    later = threading.Timer(0.2, one.set_exception, (ValueError(),))
    later.start()
    assert waiting.first({one, two}, 600) == {one}
    later.join()
    assert waiting.first({two}, 0) == set()


def test_one_that_joins_later_and_one_that_is_cancelled_count() -> None:
    waiting, (one, two, three) = FirstCompleted(), futures(3)
    assert waiting.first({one}, 0) == set()
    two.set_result(2)
    assert waiting.first({one, two}, 600) == {two}
    three.cancel()
    assert waiting.first({one, three}, 600) == {three}
