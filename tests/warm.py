"""Calls of Python programs in processes of their own that need not import anything: a test saves seconds per search.

A process is forked from :mod:`tests.warm_server`. What only a fresh process shows, the cost and the order of imports or
another hash seed, is tested with ``subprocess``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from tests.cli.calling import ROOT, Done
from tests.warm_server import HEADER, RESULT

_AT_START: Final = ("PYTHON", "LC_", "LANG", "OMP_", "OPENBLAS_", "MKL_", "LD_")
"""Variables that are read when a process starts, so that a call with other values needs a fresh process."""


class WarmProcess:
    """A running call. Its output goes to files, so that nothing must read it meanwhile."""

    def __init__(self, pid: int, answers: socket.socket, out: IO[bytes], err: IO[bytes]) -> None:
        self.pid = pid
        self._answers, self._out, self._err = answers, out, err

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def finish(self, timeout_s: float = 1800) -> Done:
        """Waits for the end of the call.

        Raises:
            TimeoutExpired: It did not end, and was killed.
        """
        self._answers.settimeout(timeout_s)
        try:
            status = _result(self._answers)
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired("call", timeout_s) from None
        finally:
            self._answers.close()
        return Done(os.waitstatus_to_exitcode(status), _text(self._out), _text(self._err))


class WarmPython:
    """Starts calls; a context manager. Usable by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, end = socket.socketpair()
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": path}
        with end:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_server", str(end.fileno())],
                cwd=ROOT,
                env=self._environment,
                pass_fds=(end.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._server.wait()

    def start(self, program: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> WarmProcess:
        """Starts ``python -m PROGRAM WORDS``, or ``python PROGRAM WORDS`` for a path that ends with ``.py``."""
        assert self.serves(environment), "a variable that is read when a process starts differs"
        request = {
            "program": program,
            "words": list(words),
            "folder": str(folder),
            "environment": dict(environment),
        }
        body = json.dumps(request).encode()
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - read at the end of the call
        ours, theirs = socket.socketpair()
        with theirs, Path(os.devnull).open("rb") as nothing, self._lock:
            streams = [nothing.fileno(), out.fileno(), err.fileno(), theirs.fileno()]
            socket.send_fds(self._control, [HEADER.pack(len(body))], streams)
            self._control.sendall(body)
        return WarmProcess(_result(ours), ours, out, err)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a call in this environment can be forked."""
        return _at_start(environment) == _at_start(self._environment)

    def run(
        self, program: str, words: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float = 1800
    ) -> Done:
        """Runs a call to its end, in a fresh process where the environment asks for one; see :meth:`start`."""
        if not self.serves(environment):
            command = [sys.executable, *([] if program.endswith(".py") else ["-m"]), program, *words]
            done = subprocess.run(
                command, cwd=folder, env=dict(environment), timeout=timeout_s,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            return Done(done.returncode, done.stdout, done.stderr)
        return self.start(program, words, folder, environment).finish(timeout_s)


def _at_start(environment: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name.startswith(_AT_START)}


def _result(answers: socket.socket) -> int:
    data = answers.recv(RESULT.size, socket.MSG_WAITALL)
    if len(data) < RESULT.size:
        raise ConnectionError("the server of warm processes has ended")
    return int(RESULT.unpack(data)[0])


def _text(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode()
