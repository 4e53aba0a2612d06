"""A process beside this one that imports early and computes later, so that no thread of this one is held up by it."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from evoengine.device.workers.worker_main import die_with_parent, set_process_name

_T = TypeVar("_T")


class SidecarProcess:
    """One process. The thread that makes it must live until it is closed.

    Args:
        name: for process lists.
        preload: modules that it imports at once; missing ones are passed over.
    """

    def __init__(self, name: str, preload: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, os.getpid(), name, tuple(preload))
        self._process = context.Process(target=_serve, args=arguments, name=name, daemon=True)
        # The child inherits the mask, so that Ctrl-C cannot hit it before it ignores the signal.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def run(self, call: Callable[[], _T]) -> _T:
        """The result of a call, both of which can be pickled. It is computed here if the process has died.

        Raises:
            Exception: whatever the call raises.
        """
        try:
            self._pipe.send(call)
            result, error = self._pipe.recv()
        except (EOFError, OSError):
            return call()
        if error is not None:
            raise error
        found: _T = result
        return found

    def close(self) -> None:
        """Kills the process; harmless when called twice."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, parent_pid: int, name: str, preload: tuple[str, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent(parent_pid)
    set_process_name(name)
    os.dup2(2, 1)  # what a library prints must not get into the search's own output
    threading.Thread(target=_import, args=(preload,), daemon=True).start()  # calls wait only for what they need
    with contextlib.suppress(EOFError, OSError):  # nobody waits any more
        while True:
            pipe.send(_outcome(pipe.recv()))


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # the call that needs it will say so
            importlib.import_module(module)


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
        return None, error
