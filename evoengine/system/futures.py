"""Futures of values that are known, or follow from those of others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")
_Source = TypeVar("_Source")


def done_future(value: _T) -> Future[_T]:
    """Returns a future that is done."""
    done: Future[_T] = Future()
    done.set_result(value)
    return done


def mapped_future(source: Future[_Source], function: Callable[[_Source], _T]) -> Future[_T]:
    """Returns a function's result for that of another future; it fails, or is cancelled, with the other.

    Args:
        source: Future that may not be done yet.
        function: Called once, by the thread that completes ``source``.
    """
    mapped: Future[_T] = Future()

    def _complete(done: Future[_Source]) -> None:
        if done.cancelled():
            mapped.cancel()
            return
        try:
            mapped.set_result(function(done.result()))
        except Exception as error:  # noqa: BLE001 - raised where the result is taken
            mapped.set_exception(error)

    source.add_done_callback(_complete)
    return mapped
