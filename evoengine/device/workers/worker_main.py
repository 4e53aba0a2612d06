"""The worker's process: builds the served object, then executes calls of its methods until the pipe closes.

A thread reads the calls, so that a call sent while another one runs, however large, is available when that one ends.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from evoengine import errors
from evoengine.device.workers.wire import WireError, encode
from evoengine.errors import EvoEngineError
from evoengine.system.machine_faults import machine_fault

Factory = Callable[[], object]
"""Builds the served object; picklable, for example ``functools.partial(Examiner, setup)``."""

OPEN: Final = "open"
"""Method name of the first call to every worker, which also builds the object."""
CHECK: Final = "check"
WARM_UP: Final = "warm_up"
"""Method name of the call that precedes :data:`OPEN` in a worker that is forked before its factory is known."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_MAX_TEXT: Final = 1000


@dataclass(frozen=True)
class MethodCall:
    """One call for a worker, sent as a pickle: data from the search itself is trusted."""

    number: int
    method: str
    args: tuple[object, ...]
    tag: str = ""
    """Subject of the call; it is the process name while the call runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set before the object is built; used by the first call only."""
    factory: bytes = b""
    """Pickled factory, for a worker that was forked before it was known; used by :data:`OPEN` only."""


@dataclass(frozen=True)
class Failure:
    """An error as data: the nearest class of :mod:`evoengine.errors` and its one line."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Converts an error.

        Faults of the machine become MachineErrors, EvoEngine's other errors keep their class, and all others become a
        crash with the source line.
        """
        found = machine_fault(error) or error
        if isinstance(found, EvoEngineError):
            names = (kind.__name__ for kind in type(found).__mro__ if kind in _plain_errors().values())
            return cls(next(names), _one_line(str(found)))
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        text = _one_line(f"{type(error).__name__}: {error}")
        return cls(errors.WorkerCrashError.__name__, f"{text}{place}")

    def error(self) -> EvoEngineError:
        """Returns the error; an unknown class becomes a crash."""
        return _plain_errors().get(self.kind, errors.WorkerCrashError)(self.text)


def _plain_errors() -> dict[str, type[EvoEngineError]]:
    """Returns the classes of :mod:`evoengine.errors` that are constructed from one line."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EvoEngineError)]
    return {kind.__name__: kind for kind in kinds if kind.__init__ is EvoEngineError.__init__}


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}…"


def serve(pipe: Connection, factory: Factory | None, name: str) -> None:
    """Executes one worker's calls, the first of which is :data:`OPEN`, or :data:`WARM_UP` and then :data:`OPEN`.

    It returns after an answer that is not healthy: another worker executes the next call, even if it has arrived here.
    """
    served: object = None
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, calls), name="reader", daemon=True).start()
    set_process_name(name)
    while data := calls.get():
        call: MethodCall = pickle.loads(data)  # noqa: S301 - the search itself pickled it
        set_process_name(call.tag or name)
        try:
            os.environ.update(call.environment)
            if call.method == OPEN:
                served = _built(call, factory)
            result = _result(served, call)
        except BaseException as error:  # noqa: BLE001 - the error of one call must not end the worker
            answer = _answer(call, served, None, Failure.of(error))
        else:
            answer = _answer(call, served, result, None)
        pipe.send_bytes(answer)
        set_process_name(name)
        if not getattr(served, "healthy", True):
            return


def _read(pipe: Connection, calls: queue.SimpleQueue[bytes]) -> None:
    """Queues calls as they arrive, and empty bytes when the pipe closes."""
    data = b"-"
    while data:
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            data = b""
        calls.put(data)


def _built(call: MethodCall, factory: Factory | None) -> object:
    """Builds the served object with the call's factory, or with that of the fork server."""
    made = pickle.loads(call.factory) if call.factory else factory  # noqa: S301 - the search itself pickled it
    assert made is not None, "a worker is opened once its factory is known"
    return made()


def _result(served: object, call: MethodCall) -> object:
    """Runs the method; ``open`` and ``check`` are optional."""
    if call.method == WARM_UP:
        return call.args[0]()  # type: ignore[operator]
    method = getattr(served, call.method, None)
    if method is not None:
        return method(*call.args)
    if call.method == OPEN:
        return ""
    if call.method == CHECK:
        return None
    raise AttributeError(f"{type(served).__name__} has no method {call.method}")


def _answer(call: MethodCall, served: object, result: object, failure: Failure | None) -> bytes:
    healthy = bool(getattr(served, "healthy", True))
    envelope = {"number": call.number, "tag": call.tag, "healthy": healthy}
    try:
        return encode(envelope | {"failure": failure, "result": result})
    except WireError as error:
        unsendable = Failure(errors.WorkerCrashError.__name__, f"the result of {call.method} cannot be sent: {error}")
        return encode(envelope | {"failure": unsendable, "result": None})


def set_process_name(name: str) -> None:
    """Names this process in ``ps`` and ``top``; the kernel keeps 15 bytes."""
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Asks Linux to kill this process when the thread that started it ends, for any reason."""
    if sys.platform != "linux":
        return
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent died before the request was made
        os._exit(1)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
