"""A worker without a queue: each call is made once, and a worker that dies or stalls is reported instead of replaced.

The served object's ``open`` receives the worker's folder, in which it may keep a :class:`Journal` and its captured
output. Both are files, so that they can be read after the worker has died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from evoengine.device.workers.fork_server import ForkServer, StalledError
from evoengine.device.workers.task import Task, validated
from evoengine.device.workers.wire import WireError
from evoengine.device.workers.worker_main import OPEN, MethodCall
from evoengine.errors import CandidateTimeoutError, WorkerCrashError

_OUTPUT: Final = "output"
_JOURNAL: Final = "journal"
_ENTRY_BYTES: Final = 128
_POLL_S: Final = 0.5


class Journal:
    """The present subject of a worker, in a file of its folder. An entry costs about a microsecond.

    Args:
        folder: Folder of the worker.
    """

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder, _JOURNAL), os.O_RDWR | os.O_CREAT, 0o600)
        self._count = 0

    def write(self, subject: str) -> None:
        """Replaces the entry."""
        self._count += 1
        os.pwrite(self._file, f"{self._count} {subject}".encode()[:_ENTRY_BYTES].ljust(_ENTRY_BYTES), 0)


def capture_output(folder: str) -> None:
    """Sends everything that this process and its children print to a file of the worker's folder."""
    file = os.open(Path(folder, _OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


class SingleWorker:
    """One worker process.

    Args:
        fork_server: Process that forks the worker; its factory is set.
        name: Name for process lists.
        folder: Folder of this worker alone, which exists.
        environment: Variables to set before the served object is built.
        start_s: Time limit of the start.

    Raises:
        CandidateTimeoutError: The worker does not start in time.
        EvoEngineError: The worker cannot be started.
    """

    def __init__(
        self, fork_server: ForkServer, name: str, folder: Path, environment: Mapping[str, str], start_s: float
    ) -> None:
        self._folder = folder
        self._calls = 0
        self._killed = False
        self._worker = fork_server.fork(name)
        try:
            self._call(MethodCall(0, OPEN, (str(folder),), environment=environment), str, start_s)
        except BaseException:
            self.close()
            raise

    @property
    def subject(self) -> str:
        """The latest entry of the worker's journal; empty if there is none."""
        return self._entry().partition(" ")[2].strip()

    @property
    def output(self) -> str:
        """Everything that the worker has printed so far."""
        with suppress(OSError):
            return Path(self._folder, _OUTPUT).read_text(encoding="utf-8", errors="replace")
        return ""

    def call(self, method: str, *args: object, kind: Any, limit_s: float) -> Any:
        """Calls a method of the served object.

        Args:
            method: Name of the method.
            args: Picklable arguments.
            kind: Type of the result.
            limit_s: Longest time without an answer and without a new entry in the journal.

        Raises:
            CandidateTimeoutError: The limit has passed.
            WorkerCrashError: The worker died, its answer is malformed, or the method raised an error that is not an
                EvoEngineError.
            EvoEngineError: The error that the method raised.
        """
        self._calls += 1
        return self._call(MethodCall(self._calls, method, args), kind, limit_s)

    def close(self) -> None:
        """Kills the worker; may be called twice."""
        if not self._killed:
            self._killed = True
            self._worker.kill()

    def _call(self, call: MethodCall, kind: Any, limit_s: float) -> Any:
        try:
            self._worker.send(call)
            data = self._answer(limit_s)
            outcome = validated(data, call, Task(call.method, call.args, kind, None, call.tag, limit_s))
        except WireError as error:
            raise WorkerCrashError(f"its process gave a malformed answer: {error}") from error
        except StalledError as error:
            raise CandidateTimeoutError("its process no longer reads or writes") from error
        except (EOFError, OSError) as error:
            self._killed = True
            raise WorkerCrashError(f"its process died of {self._worker.kill() or 'an unknown cause'}") from error
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def _answer(self, limit_s: float) -> bytes:
        entry, deadline = self._entry(), time.monotonic() + limit_s
        while True:
            left_s = deadline - time.monotonic()
            data = self._worker.receive(max(0.0, min(_POLL_S, left_s)))
            if data is not None:
                return data
            if entry != (entry := self._entry()):
                deadline = time.monotonic() + limit_s
            elif left_s <= 0:
                raise CandidateTimeoutError(f"no answer within {limit_s:.3g} s")

    def _entry(self) -> str:
        with suppress(OSError):
            return Path(self._folder, _JOURNAL).read_text(encoding="utf-8", errors="replace")
        return ""
