"""A nursery: one process that has imported and unpickled all that a worker needs, and forks a worker when asked.

A fresh worker takes milliseconds instead of the seconds that importing CuPy and torch takes, so a candidate that costs
its worker costs little else. The nursery itself never touches a device and never starts a thread, which is what makes
forking it safe. It is also the parent that reaps the workers: their process ids stay theirs until it is told to.
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
from typing import Final

from evoengine.device.workers.fork_server_main import HELLO, READY, UNKNOWN, nursery_main
from evoengine.device.workers.worker_main import Factory, MethodCall
from evoengine.errors import WorkerCrashError

_REAP_S: Final = 10.0
"""How long a killed worker may take to die. A driver that tears down a context needs a part of this."""
_REAP_PAUSE_S: Final = 0.002
_STALL_S: Final = 30.0
"""No single transfer over a pipe takes longer, unless the process at the other end is stuck."""
_MAX_ANSWER_BYTES: Final = 1 << 30


class StalledError(Exception):
    """The process at the other end of a pipe neither reads nor writes."""


class Worker:
    """A forked process, as its owner sees it. Made by :meth:`ForkServer.fork`."""

    def __init__(self, nursery: ForkServer, pid: int, pipe: Connection) -> None:
        self._nursery = nursery
        self.pid = pid
        self._pipe = pipe

    def send(self, call: MethodCall) -> None:
        """Sends a call.

        Raises:
            OSError: the worker is dead.
            StalledError: it does not read.
            Exception: whatever pickling raises; then nothing was sent.
        """
        data = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        try:
            self._pipe.send_bytes(data)
        except BlockingIOError as error:
            raise StalledError from error

    def receive(self, timeout_s: float) -> bytes | None:
        """The next answer; None when there is none in time.

        Raises:
            EOFError: the worker is dead.
            OSError: likewise.
            StalledError: it began to answer and did not end.
        """
        if not self._pipe.poll(timeout_s):
            return None
        try:
            return self._pipe.recv_bytes(_MAX_ANSWER_BYTES)
        except BlockingIOError as error:
            raise StalledError from error

    def kill(self) -> str:
        """Kills the worker, waits for its end and lets go of it; says how it died, which may be of itself."""
        how = self._nursery.reap(self.pid)
        self._pipe.close()
        return how


class ForkServer:
    """The process that forks workers, and its replacement should it die itself. Safe to use from several threads.

    The thread that makes it must live as long as it is used.

    It begins to import at once; what its workers serve it may be taught later.

    Args:
        name: for process lists and messages.
        preload: modules to import; missing ones are passed over.
        start_timeout_s: how long the imports may take.
        folder: for temporary files.
    """

    def __init__(self, name: str, preload: Sequence[str], start_timeout_s: float, folder: str) -> None:
        self._pickled = b""
        self._name = name
        self._preload = tuple(preload)
        self._start_timeout_s = start_timeout_s
        self._folder = folder
        self._lock = threading.Lock()  # one command at a time; also guards what follows
        self._closed = False
        self._ready = False
        self._process, self._control = self._launch()

    def teach(self, factory: Factory) -> None:
        """Says, before the first worker, what builds the object that a worker serves; the nursery unpickles it once."""
        self._pickled = pickle.dumps(factory, pickle.HIGHEST_PROTOCOL)

    def fork(self, name: str) -> Worker:
        """Starts a worker, which waits for its first call; the nursery must have been taught.

        Raises:
            WorkerCrashError: the nursery cannot start one.
        """
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        _never_block_longer_than(ours, _STALL_S)
        try:
            with self._lock:
                self._make_ready()
                self._control.send_bytes(b"fork " + name.encode())
                send_handle(self._control, theirs.fileno(), self._process.pid)
                pid = int(self._reply())
        except (EOFError, OSError, ValueError, StalledError) as error:
            ours.close()
            raise WorkerCrashError(f"cannot start {name}: {error or 'its parent process died'}") from error
        finally:
            theirs.close()
        if pid < 0:
            ours.close()
            raise WorkerCrashError(f"cannot start {name}: {os.strerror(-pid)}")
        return Worker(self, pid, ours)

    def reap(self, pid: int) -> str:
        """Kills a worker and waits for its end.

        Returns:
            How it died: ``SIGSEGV``, ``exit code 3``, or ``SIGKILL``, which may be the one from here; empty when the
            worker does not die because its driver hangs, or when the nursery is gone and its workers with it.
        """
        deadline = time.monotonic() + _REAP_S
        try:
            while True:
                with self._lock:
                    self._control.send_bytes(b"reap %d" % pid)
                    told = self._reply().decode()
                if told != UNKNOWN or time.monotonic() > deadline:
                    return "" if told == UNKNOWN else _told(int(told))
                time.sleep(_REAP_PAUSE_S)
        except (EOFError, OSError, ValueError, StalledError):
            return ""

    def close(self) -> None:
        """Kills the workers and the nursery; prompt, also while it is importing, and harmless when called twice."""
        if self._closed:
            return
        self._closed = True
        if self._ready and self._lock.acquire(timeout=1.0):
            try:
                self._control.send_bytes(b"end")  # it kills its workers and waits for them: a GPU is free then
            except OSError:
                self._process.kill()
            finally:
                self._lock.release()
        else:
            self._process.kill()  # which is the end of its workers as well, and of a fork that waits for it
        with self._lock:  # a thread that is still talking to it must not lose the pipe in the midst of a word
            self._process.join(_REAP_S)
            self._process.kill()
            self._process.join(_REAP_S)
            self._control.close()

    def _launch(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        _never_block_longer_than(ours, _STALL_S)
        arguments = (theirs, os.getpid(), self._name, self._preload, self._folder)
        process = context.Process(target=nursery_main, args=arguments, name=self._name, daemon=True)
        # The child inherits the mask, so that Ctrl-C cannot hit it before it ignores the signal.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        return process, ours

    def _make_ready(self) -> None:
        """Waits for the imports, once; a nursery that died is replaced.

        Raises:
            EOFError: it died.
            OSError: likewise, or it cannot be started.
            WorkerCrashError: it does not become ready.
        """
        if self._closed:
            raise WorkerCrashError("the search was stopped")
        if self._ready and not self._process.is_alive():
            self._control.close()
            self._ready = False
            self._process, self._control = self._launch()
        if self._ready:
            return
        told = self._reply(self._start_timeout_s)
        if told == HELLO:  # it reads now
            self._control.send_bytes(self._pickled)
            told = self._reply(self._start_timeout_s)
        if told != READY:
            raise WorkerCrashError(told.decode(errors="replace"))
        self._ready = True

    def _reply(self, timeout_s: float = _STALL_S) -> bytes:
        if not self._control.poll(timeout_s):
            self._process.kill()  # stuck: its workers end with it, and the next fork replaces it
            raise StalledError("its parent process does not answer")
        return self._control.recv_bytes(_MAX_ANSWER_BYTES)


def _told(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _never_block_longer_than(pipe: Connection, seconds: float) -> None:
    """Makes sends and receives that stall raise BlockingIOError; ``poll`` still waits as long as it is told."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)
