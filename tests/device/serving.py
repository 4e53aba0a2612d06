"""An object for workers to serve in the pool's tests; importable by name in a fresh process."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from evoengine.errors import LaunchError, UsageError


class Served:
    """Echoes, fails, hangs and dies on demand."""

    def __init__(self, start_fails: bool = False) -> None:
        if start_fails:
            raise UsageError("no such device: choose another")
        self.healthy = True

    def echo(self, value: object) -> object:
        return value

    def pid(self) -> int:
        return os.getpid()

    def refuse(self) -> None:
        raise LaunchError("illegal address")

    def stumble(self) -> None:
        raise KeyError("a bug\nin two lines")

    def wreck(self) -> int:
        self.healthy = False
        raise LaunchError(f"context lost in {os.getpid()}")

    def hang(self) -> None:
        time.sleep(3600)

    def spin(self) -> None:
        while True:
            pass

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self) -> None:
        os._exit(3)

    def unsendable(self) -> object:
        return lambda: None

    def interrupt_self(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "still here"


def start_broken() -> Served:
    return Served(start_fails=True)


def start_dying() -> Served:
    os._exit(7)


def parent(folder: str) -> None:
    """A parent process with one busy worker; writes the worker's pid and waits to be killed."""
    from evoengine.device.worker import WorkerPool

    pool = WorkerPool(Served, 1, 600.0)
    pid = pool.submit("pid").result()
    pool.submit("spin")
    (Path(folder) / "pid.tmp").write_text(str(pid))
    (Path(folder) / "pid.tmp").rename(Path(folder) / "pid")
    time.sleep(600)


if __name__ == "__main__":
    parent(sys.argv[1])
