"""A process beside this one that imports early and computes later, so that it blocks no thread of this process."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, TypeVar

from evoengine.device.workers.array_file import dumps
from evoengine.device.workers.process_start import start_process
from evoengine.device.workers.worker_main import die_with_parent, set_process_name
from evoengine.errors import WorkerCrashError
from evoengine.system.main_module import import_main_on_demand, main_module
from evoengine.system.stop_signals import ignore_stop_signals

_T = TypeVar("_T")


class SidecarProcess:
    """One process. The thread that creates it must live until it is closed.

    Args:
        name: Name for process lists.
        preload: Modules that it imports at once; missing ones are skipped.
        arrays: Folder for the large arrays of results, which must exist as long as they are passed on; None to send
            them with the results.
    """

    def __init__(self, name: str, preload: Sequence[str], arrays: Path | None = None) -> None:
        self._begun: Callable[[], Any] | None = None
        self._closed = False
        self._receiving = threading.Lock()
        """Held while a thread waits for a result: the pipe is closed after that."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, os.getpid(), name, tuple(preload), arrays, main_module())
        self._process = context.Process(target=_serve, args=arguments, name=name, daemon=True)
        try:
            start_process(self._process)
        finally:
            theirs.close()
        # Python joins it at exit after a SIGTERM, which it ignores; an interrupt may leave it unclosed.
        Finalize(self, self._process.kill, exitpriority=0)

    def begin(self, call: Callable[[], object]) -> None:
        """Starts a call unless one is under way; :meth:`run` takes its result if it is given an equal one."""
        if self._begun is not None:
            return
        with contextlib.suppress(OSError):  # the process is dead, which 'run' handles
            self._pipe.send(call)
            self._begun = call

    def run(self, call: Callable[[], _T]) -> _T:
        """Returns the result of a call; call and result must be picklable. A dead process is replaced by a local call.

        Raises:
            WorkerCrashError: The process was closed meanwhile.
            Exception: Any error that the call raises.
        """
        outcome = self._outcome_of(call)
        if outcome is None:
            return call()
        result, error = outcome
        if error is not None:
            raise error
        found: _T = result
        return found

    def _outcome_of(self, call: Callable[[], object]) -> tuple[Any, Exception | None] | None:
        """Result and error of a call in the process; None if the process is dead.

        Raises:
            WorkerCrashError: The process was closed meanwhile.
        """
        begun, self._begun = self._begun, None
        with self._receiving:
            try:
                if begun is not None and begun != call:
                    self._pipe.recv()
                if begun is None or begun != call:
                    self._pipe.send(call)
                outcome: tuple[Any, Exception | None] = self._pipe.recv()
            except (EOFError, OSError) as gone:
                if self._closed:
                    raise WorkerCrashError("the search was stopped") from gone
                return None
        return outcome

    def close(self) -> None:
        """Kills the process; may be called twice."""
        self._closed = True
        self._process.kill()
        self._process.join()
        with self._receiving:  # a thread that waits for a result sees the end of the process first
            self._pipe.close()


def _serve(
    pipe: Connection,
    parent_pid: int,
    name: str,
    preload: tuple[str, ...],
    arrays: Path | None,
    main: Mapping[str, str],
) -> None:
    import_main_on_demand(main)
    ignore_stop_signals()  # the parent handles them
    die_with_parent(parent_pid)
    set_process_name(name)
    multiprocessing.current_process().daemon = False  # only the parent ends this process; a call may start others
    os.dup2(2, 1)  # output of a library must not mix with the search's own output
    threading.Thread(target=_import, args=(preload,), daemon=True).start()  # a call waits only for its own imports
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe
        while True:
            outcome = _outcome(pipe.recv())
            if arrays is None:
                pipe.send(outcome)
            else:
                pipe.send_bytes(dumps(outcome, arrays))


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # the call that needs the module reports the error
            importlib.import_module(module)


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - every error is passed to the caller
        return None, error
