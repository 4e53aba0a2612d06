"""Handling of Ctrl-C: the first one requests an orderly stop, the second one interrupts immediately."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_first_interrupt(request_stop: Callable[[], None]) -> Iterator[None]:
    """Calls a function on the first SIGINT, and restores the previous handler for the next one.

    Outside the main thread, where Python cannot install signal handlers, this does nothing.

    Args:
        request_stop: Function to call.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        request_stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
