"""Handling of Ctrl-C, SIGTERM and SIGHUP: the first one requests an orderly stop, the second one ends immediately."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evoengine.system.stop_signals import on_stop_signal


@contextmanager
def on_first_interrupt(request_stop: Callable[[], None]) -> Iterator[None]:
    """Calls a function on the first stop signal, and restores the previous handlers for the next one.

    Outside the main thread, where Python cannot install signal handlers, this does nothing.

    Args:
        request_stop: Function to call.
    """
    with on_stop_signal(request_stop, once=True):
        yield
