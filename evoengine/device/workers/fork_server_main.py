"""Inside a nursery: imports once, then forks and reaps workers as told (see :mod:`evoengine.device.workers.fork_server`)."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import resource
import signal
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Final, NoReturn

from evoengine.device.workers.worker_main import Factory, Failure, die_with_parent, serve, set_process_name

HELLO: Final = b"hello"
"""It has imported what it was told to, and takes the factory."""
READY: Final = b"ready"
"""It takes commands."""
UNKNOWN: Final = "?"
"""There is no wait status yet."""

_END_S: Final = 5.0
_PAUSE_S: Final = 0.002


def nursery_main(control: Connection, parent_pid: int, name: str, preload: tuple[str, ...], folder: str) -> None:
    """Imports, then obeys: ``fork NAME``, ``reap PID``, ``end``.

    The factory comes pickled, so that what it imports (NumPy) sees the environment that is set here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent(parent_pid)
    set_process_name(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a worker that crashes must not fill the disk
    os.environ["TMPDIR"] = folder
    os.dup2(2, 1)  # what a driver or a compiler prints must not get into the search's own output
    for library in ("OPENBLAS", "OMP", "MKL"):  # there is a worker per core already; and threads do not survive a fork
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    children: set[int] = set()
    try:
        for module in preload:
            with contextlib.suppress(Exception):  # the worker that needs it will say so
                importlib.import_module(module)
        control.send_bytes(HELLO)
        pickled = control.recv_bytes()
        try:
            factory: Factory = pickle.loads(pickled)  # noqa: S301 - our own parent pickled it
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            control.send_bytes(Failure.of(error).text.encode())
            return
        del pickled
        gc.collect()
        gc.freeze()  # no collection ever touches, and so copies, the pages that the workers share
        control.send_bytes(READY)
        _obey(control, factory, children)
    except (EOFError, OSError):
        pass  # the search is over
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        _wait_for(children)


def _obey(control: Connection, factory: Factory, children: set[int]) -> None:
    while True:
        command, _, rest = control.recv_bytes().partition(b" ")
        if command == b"fork":
            control.send_bytes(b"%d" % _fork(control, factory, rest.decode(), children))
        elif command == b"reap":
            control.send_bytes(_reap(int(rest), children).encode())
        else:
            return


def _fork(control: Connection, factory: Factory, name: str, children: set[int]) -> int:
    """The new worker's process id, or minus the error's number."""
    handle = recv_handle(control)
    nursery = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(handle)
        return -(error.errno or 1)
    if pid == 0:
        _live(control, handle, factory, name, nursery)
    os.close(handle)
    children.add(pid)
    return pid


def _live(control: Connection, handle: int, factory: Factory, name: str, nursery: int) -> NoReturn:
    """A worker's whole life; nothing of the nursery's own runs in it afterwards."""
    try:
        die_with_parent(nursery)
        control.close()
        serve(Connection(handle), factory, name)
    except BaseException:  # noqa: BLE001 - it must not unwind into the nursery's own code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _reap(pid: int, children: set[int]) -> str:
    """The wait status of a worker, which is killed unless it is dead already; ``?`` while it is still dying."""
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
