"""Signals that ask a program to end: Ctrl-C, ``kill``, and a terminal that closes. All have the same effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_stop_signals() -> None:
    """Leaves the end of this process to its parent; also unblocks what :func:`stop_signals_blocked` blocked."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Blocks the signals in this thread for the block; they arrive after it, or in another thread.

    A process that is started in the block inherits the mask, so that no signal can end it before it calls
    :func:`ignore_stop_signals`.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def stop_signals_kept() -> Iterator[None]:
    """Keeps this program's handling of the signals for a block in which a library has handlers of its own.

    The signals arrive after the block, unless another thread receives them. A library that restores the handlers by C's
    ``signal`` leaves them with SA_RESTART: they would no longer interrupt a wait for a lock.
    """
    with stop_signals_blocked():
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                signal.siginterrupt(number, True)


@contextmanager
def on_stop_signal(handle: Callable[[], object], *, once: bool) -> Iterator[None]:
    """Calls a function on a stop signal, and restores the previous handlers at the end.

    Outside the main thread, where Python cannot install handlers, this does nothing. A signal that the parent asked to
    ignore, as ``nohup`` does with SIGHUP, stays ignored; only Ctrl-C is always handled.

    Args:
        handle: Function to call; it may raise.
        once: Whether the previous handlers are restored at the first signal, for the next one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    kept = [number for number, old in before.items() if old is None]
    kept += [number for number, old in before.items() if old == signal.SIG_IGN and number != signal.SIGINT]

    def restore() -> None:
        for number, old in before.items():
            if number not in kept:
                signal.signal(number, old)

    def receive(_number: int, _frame: FrameType | None) -> None:
        if once:
            restore()
        handle()

    for number in STOP_SIGNALS:
        if number not in kept:
            signal.signal(number, receive)
    try:
        yield
    finally:
        restore()
