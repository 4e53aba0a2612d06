"""Futures that follow from others: results, errors and cancellation."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future

import pytest

from evoengine.system.futures import done_future, mapped_future


def test_the_function_is_called_once_when_the_source_is_done() -> None:
    source: Future[int] = Future()
    calls: list[int] = []

    def doubled(value: int) -> int:
        calls.append(value)
        return 2 * value

    mapped = mapped_future(source, doubled)
    assert not mapped.done()
    assert calls == []
    source.set_result(21)
    assert mapped.result(timeout=0) == 42
    assert calls == [21]


def test_a_known_value_is_mapped_at_once() -> None:
    assert mapped_future(done_future([3, 1]), sorted).result(timeout=0) == [1, 3]


def test_the_error_of_the_source_is_that_of_the_mapped_future() -> None:
    source: Future[str] = Future()
    mapped = mapped_future(source, len)
    error = KeyError("lost")
    source.set_exception(error)
    assert mapped.exception(timeout=0) is error


def test_the_error_of_the_function_is_that_of_the_mapped_future() -> None:
    with pytest.raises(ZeroDivisionError):
        mapped_future(done_future(0), lambda value: 1 / value).result(timeout=0)


def test_a_cancelled_source_cancels_the_mapped_future() -> None:
    source: Future[str] = Future()
    mapped = mapped_future(source, len)
    assert source.cancel()
    assert mapped.cancelled()
    with pytest.raises(CancelledError):
        mapped.result(timeout=0)
