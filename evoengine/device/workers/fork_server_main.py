"""The fork server's process: imports once, then forks and reaps workers on command.

The parent's side is :mod:`evoengine.device.workers.fork_server`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import pickle
import resource
import signal
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Final, NoReturn

from evoengine.device.workers.worker_main import Factory, Failure, die_with_parent, serve, set_process_name
from evoengine.system.garbage_collection import collect_rarely
from evoengine.system.main_module import import_main_on_demand
from evoengine.system.memory import offer_to_oom_killer
from evoengine.system.stop_signals import ignore_stop_signals

READY: Final = b"ready"
"""Reply after the imports, and after the factory was unpickled; commands are accepted."""
UNKNOWN: Final = "?"
"""Reply to ``reap`` while there is no wait status yet."""

_END_S: Final = 5.0
_PAUSE_S: Final = 0.002


def fork_server_main(
    control: Connection, parent_pid: int, name: str, preload: tuple[str, ...], folder: str, main: Mapping[str, str]
) -> None:
    """Imports, then executes the commands ``factory``, ``fork NAME``, ``reap PID`` and ``end``.

    The factory arrives pickled, so that its own imports (NumPy) read the environment that is set here. Workers that are
    forked before it arrives receive it with their first ``open`` call.
    """
    import_main_on_demand(main)
    ignore_stop_signals()  # the parent handles them, also where a service manager sends them to all processes
    die_with_parent(parent_pid)
    set_process_name(name)
    offer_to_oom_killer()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a worker that crashes must not fill the disk
    os.environ["TMPDIR"] = folder
    logging.getLogger("evoengine").setLevel(logging.ERROR)  # the search itself warns, once and not per worker
    collect_rarely()
    os.dup2(2, 1)  # output of a driver or a compiler must not mix with the search's own output
    for library in ("OPENBLAS", "OMP", "MKL"):  # there is one worker per core, and threads do not survive a fork
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    children: set[int] = set()
    try:
        for module in preload:
            with contextlib.suppress(Exception):  # the worker that needs the module reports the error
                importlib.import_module(module)
        control.send_bytes(READY)
        _execute_commands(control, children)
    except (EOFError, OSError):
        pass  # the search has ended
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        _wait_for(children)


def _execute_commands(control: Connection, children: set[int]) -> None:
    factory: Factory | None = None
    while True:
        command, _, rest = control.recv_bytes().partition(b" ")
        if command == b"factory":
            try:
                factory = _unpickled(control)
            except Exception as error:  # noqa: BLE001 - every error is reported to the parent
                control.send_bytes(Failure.of(error).text.encode())
            else:
                control.send_bytes(READY)
        elif command == b"fork":
            control.send_bytes(b"%d" % _fork(control, factory, rest.decode(), children))
        elif command == b"reap":
            control.send_bytes(_reap(int(rest), children).encode())
        else:
            return


def _unpickled(control: Connection) -> Factory:
    factory: Factory = pickle.loads(control.recv_bytes())  # noqa: S301 - our own parent pickled it
    gc.collect()
    gc.freeze()  # a collection would write to, and so copy, the pages that the workers share
    return factory


def _fork(control: Connection, factory: Factory | None, name: str, children: set[int]) -> int:
    """Forks a worker; returns its process id, or minus the error number."""
    handle = recv_handle(control)
    parent_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(handle)
        return -(error.errno or 1)
    if pid == 0:
        _run_worker(control, handle, factory, name, parent_pid)
    os.close(handle)
    children.add(pid)
    return pid


def _run_worker(control: Connection, handle: int, factory: Factory | None, name: str, parent_pid: int) -> NoReturn:
    """Runs a worker until it ends; never returns to the fork server's code."""
    try:
        die_with_parent(parent_pid)
        control.close()
        serve(Connection(handle), factory, name)
    except BaseException:  # noqa: BLE001 - it must not unwind into the fork server's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _reap(pid: int, children: set[int]) -> str:
    """Returns the wait status of a worker, which is killed if it still runs; ``?`` until it has ended."""
    if pid not in children:
        return UNKNOWN
    found, status = os.waitpid(pid, os.WNOHANG)
    if found == 0:
        os.kill(pid, signal.SIGKILL)
        return UNKNOWN
    children.discard(pid)
    return str(status)


def _wait_for(children: set[int]) -> None:
    deadline = time.monotonic() + _END_S
    while children and time.monotonic() < deadline:
        for pid in tuple(children):
            _reap(pid, children)
        time.sleep(_PAUSE_S)
