"""A fork server: one process that has imported and unpickled everything a worker needs, and forks workers on request.

Workers may be forked before it is known what they serve, to warm up meanwhile.

A fresh worker takes milliseconds instead of the seconds that importing CuPy and torch takes, so replacing a crashed
worker is cheap. The fork server itself never uses a device and never starts a thread, which makes forking it safe. It
is the parent of the workers and reaps them, so a process id is not reused before it is reaped.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

from evoengine.device.workers.array_file import dumps
from evoengine.device.workers.fork_server_main import READY, UNKNOWN, fork_server_main
from evoengine.device.workers.process_start import start_process
from evoengine.device.workers.worker_main import Factory, MethodCall
from evoengine.errors import WorkerCrashError
from evoengine.system.machine_faults import machine_fault, machine_fault_in
from evoengine.system.main_module import main_module
from evoengine.system.memory import memory_death, oom_kills

_REAP_S: Final = 10.0
"""Time that a killed worker may take to end; tearing down a CUDA context needs a part of it."""
_REAP_PAUSE_S: Final = 0.002
_END_S: Final = 0.5
"""Time in which a fork server that closed its pipe ends."""
_STALL_S: Final = 30.0
"""Limit of a single transfer over a pipe; a longer one means that the other process is stuck."""
_MAX_ANSWER_BYTES: Final = 1 << 30


class StalledError(Exception):
    """The process at the other end of a pipe neither reads nor writes."""


class Worker:
    """The parent's handle of a forked process. Build it with :meth:`ForkServer.fork`."""

    def __init__(self, fork_server: ForkServer, pid: int, pipe: Connection) -> None:
        self._fork_server = fork_server
        self.pid = pid
        self._pipe = pipe

    def send(self, call: MethodCall) -> None:
        """Sends a call.

        Raises:
            OSError: The worker is dead.
            StalledError: The worker does not read.
            Exception: Any error of pickling; nothing was sent.
        """
        data = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        try:
            self._pipe.send_bytes(data)
        except BlockingIOError as error:
            raise StalledError from error

    def receive(self, timeout_s: float) -> bytes | None:
        """Returns the next answer; None if there is none in time.

        Raises:
            EOFError: The worker is dead.
            OSError: The worker is dead.
            StalledError: The worker began an answer and did not complete it.
        """
        if not self._pipe.poll(timeout_s):
            return None
        try:
            return self._pipe.recv_bytes(_MAX_ANSWER_BYTES)
        except BlockingIOError as error:
            raise StalledError from error

    def kill(self) -> str:
        """Kills the worker and waits for its end; returns how it died, possibly before the kill."""
        cause = self._fork_server.reap(self.pid)
        self._pipe.close()
        return cause


class ForkServer:
    """The process that forks workers; it is replaced if it dies. Safe to use from several threads.

    It begins to import at once; :meth:`set_factory` may follow later. The thread that creates it must live as long as
    it is used.

    Args:
        name: Name for process lists and messages.
        preload: Modules to import; missing ones are skipped.
        start_timeout_s: Time limit of the imports.
        folder: Folder for temporary files.
    """

    def __init__(self, name: str, preload: Sequence[str], start_timeout_s: float, folder: str) -> None:
        self.pickled_factory = b""
        """Empty until :meth:`set_factory`."""
        self._name = name
        self._preload = tuple(preload)
        self._start_timeout_s = start_timeout_s
        self._folder = folder
        self._lock = threading.Lock()  # one command at a time; also guards what follows
        self._closed = False
        self._awaited = False
        self._ready = False
        self._has_factory = False
        self._oom_kills = oom_kills()
        self._process, self._control = self._launch()

    def set_factory(self, factory: Factory) -> None:
        """Sets the factory of the served object; the fork server unpickles it once, before it forks again.

        Large arrays are not sent: the folder for temporary files holds them.
        """
        self.pickled_factory = dumps(factory, Path(self._folder))

    def fork(self, name: str) -> Worker:
        """Starts a worker, which waits for its first call.

        Raises:
            WorkerCrashError: The fork server cannot start a worker.
            MachineError: Memory, processes or open files are exhausted.
        """
        try:
            ours, theirs = multiprocessing.get_context("spawn").Pipe()
        except OSError as error:
            raise machine_fault(error) or WorkerCrashError(f"cannot start {name}: {error.strerror}") from error
        _never_block_longer_than(ours, _STALL_S)
        try:
            with self._lock:
                self._make_ready()
                self._send_factory()
                self._control.send_bytes(b"fork " + name.encode())
                send_handle(self._control, theirs.fileno(), self._process.pid)
                pid = int(self._reply())
        except (EOFError, OSError, ValueError, StalledError) as error:
            ours.close()
            fault = None if isinstance(error, BlockingIOError) else machine_fault(error)
            fault = fault or memory_death(self._end_of_server(), self._oom_kills, os.getpid())
            raise fault or WorkerCrashError(
                f"cannot start {name}: {str(error) or 'its parent process died'}"
            ) from error
        finally:
            theirs.close()
        if pid < 0:
            ours.close()
            reason = os.strerror(-pid)
            raise machine_fault_in(reason) or WorkerCrashError(f"cannot start {name}: {reason}")
        return Worker(self, pid, ours)

    def reap(self, pid: int) -> str:
        """Kills a worker and waits for its end.

        Returns:
            Cause of death: ``SIGSEGV``, ``exit code 3``, or ``SIGKILL``, which may be the kill sent here. Empty if the
            worker does not end because its driver hangs, or if the fork server is gone, and its workers with it.
        """
        deadline = time.monotonic() + _REAP_S
        try:
            while True:
                with self._lock:
                    self._control.send_bytes(b"reap %d" % pid)
                    status = self._reply().decode()
                if status != UNKNOWN or time.monotonic() > deadline:
                    return "" if status == UNKNOWN else _cause_of_death(int(status))
                time.sleep(_REAP_PAUSE_S)
        except (EOFError, OSError, ValueError, StalledError):
            return ""

    @property
    def pid(self) -> int:
        """Process id of the fork server, whose limits the workers inherit."""
        return self._process.pid or os.getpid()

    def close(self) -> None:
        """Kills the workers and the fork server; prompt even during the imports, and safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._ready and self._lock.acquire(timeout=1.0):
            try:
                self._control.send_bytes(b"end")  # it kills its workers and waits for them, so that the GPU is free
            except OSError:
                self._process.kill()
            finally:
                self._lock.release()
        else:
            self._process.kill()  # this also ends its workers, and a fork request that waits for it
        with self._lock:  # another thread may be in the middle of a transfer over the pipe
            self._process.join(_REAP_S)
            self._process.kill()
            self._process.join(_REAP_S)
            self._control.close()

    def _launch(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        _never_block_longer_than(ours, _STALL_S)
        arguments = (theirs, os.getpid(), self._name, self._preload, self._folder, main_module())
        process = context.Process(target=fork_server_main, args=arguments, name=self._name, daemon=True)
        try:
            start_process(process)
        finally:
            theirs.close()
        # Python joins it at exit after a SIGTERM, which it ignores; an interrupt may leave it unclosed.
        Finalize(self, process.kill, exitpriority=0)
        return process, ours

    def _end_of_server(self) -> str:
        """Returns the signal that ended the fork server; empty if it runs or ended by itself."""
        self._process.join(_END_S)
        code = self._process.exitcode
        return signal.Signals(-code).name if code is not None and code < 0 else ""

    def _make_ready(self) -> None:
        """Waits for the imports, once, and replaces a fork server that died.

        If it died during the imports, one fork fails first.

        Raises:
            EOFError: The fork server died.
            OSError: The fork server died or cannot be started.
            WorkerCrashError: The fork server does not become ready.
        """
        if self._closed:
            raise WorkerCrashError("the search was stopped")
        if self._awaited and not self._process.is_alive():
            self._control.close()
            self._awaited = self._ready = self._has_factory = False
            self._process, self._control = self._launch()
        if not self._ready:
            self._awaited = True
            self._expect_ready()
            self._ready = True

    def _send_factory(self) -> None:
        """Sends the factory once it is known; raises what :meth:`_make_ready` does."""
        if self.pickled_factory and not self._has_factory:
            self._control.send_bytes(b"factory")
            self._control.send_bytes(self.pickled_factory)
            self._expect_ready()
            self._has_factory = True

    def _expect_ready(self) -> None:
        reply = self._reply(self._start_timeout_s)
        if reply != READY:
            text = reply.decode(errors="replace")
            raise machine_fault_in(text) or WorkerCrashError(text)

    def _reply(self, timeout_s: float = _STALL_S) -> bytes:
        if not self._control.poll(timeout_s):
            self._process.kill()  # it is stuck; its workers end with it, and the next fork replaces it
            raise StalledError("its parent process does not answer")
        return self._control.recv_bytes(_MAX_ANSWER_BYTES)


def _cause_of_death(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _never_block_longer_than(pipe: Connection, seconds: float) -> None:
    """Makes stalled sends and receives raise BlockingIOError; the timeout of ``poll`` is not affected."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)
