"""An object for workers to serve in the pool's tests; importable by name in a fresh process."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evoengine.errors import LaunchError, MachineMemoryError, SearchSpaceError, UsageError


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Parcel:
    """Every kind of thing that travels."""

    number: int
    share: float
    text: str
    raw: bytes
    flag: bool
    nothing: str | None
    colour: Colour
    numbers: tuple[float, ...]
    pair: tuple[int, str]
    by_name: Mapping[str, float]
    inner: Parcel | None = None


class Served:
    """Echoes, fails, hangs and dies on demand."""

    def __init__(self, start_fails: bool = False) -> None:
        if start_fails:
            raise UsageError("no such device: choose another")
        self.healthy = True
        self.visible = os.environ.get("PLACE", "")

    def echo(self, value: object) -> object:
        return value

    def parcel(self, value: Parcel) -> Parcel:
        return value

    def scalars(self) -> tuple[float, int, bool]:
        return np.float32(0.5), np.int64(7), np.bool_(True)  # type: ignore[return-value]

    def pid(self) -> int:
        return os.getpid()

    def parent(self) -> int:
        return os.getppid()

    def name(self) -> str:
        return Path("/proc/self/comm").read_text().strip()

    def place(self, variable: str) -> tuple[str, str]:
        """A variable, as it was when this was built and as libraries that are loaded later find it."""
        found = ctypes.CDLL(None).getenv
        found.restype = ctypes.c_char_p
        return self.visible, (found(variable.encode()) or b"").decode()

    def threads(self) -> tuple[int, int]:
        """Returns the threads of the parent process and of this one."""
        parent, own = (len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in (os.getppid(), os.getpid()))
        return parent, own

    def wait_for(self, gate: Path) -> int:
        while not gate.exists():
            time.sleep(0.005)
        return os.getpid()

    def touch(self, file: Path, _ballast: bytes) -> int:
        file.touch()
        return os.getpid()

    def note_begin(self, file: Path) -> int:
        with file.open("a") as notes:
            notes.write(f"{os.getpid()}\n")
        return os.getpid()

    def refuse(self) -> None:
        raise LaunchError("illegal address")

    def complain(self) -> None:
        raise SearchSpaceError("file.toml", "key", "reason")

    def run_out_of_disk(self) -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    def run_out_of_memory(self, marker: Path) -> int:
        """Fails where it is the first to come here."""
        if not marker.exists():
            marker.touch()
            raise MemoryError("Unable to allocate 9 GiB")
        return os.getpid()

    def stumble(self) -> None:
        raise KeyError("a bug\nin two lines")

    def wreck(self) -> int:
        self.healthy = False
        raise LaunchError(f"context lost in {os.getpid()}")

    def hang(self) -> None:
        time.sleep(3600)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def spin(self) -> None:
        while True:
            pass

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def die_once(self, marker: Path) -> str:
        """Dies where it is the first to come here."""
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    def leave(self) -> None:
        os._exit(3)

    def interrupt_self(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "still here"

    def signal_self(self, name: str) -> str:
        os.kill(os.getpid(), getattr(signal, name))
        return "still here"

    def litter(self) -> str:
        """Leaves a temporary file behind."""
        handle, name = tempfile.mkstemp()
        os.close(handle)
        return name

    def say(self, text: str) -> None:
        os.write(1, text.encode())

    # -- wrong answers

    def unsendable(self) -> object:
        return lambda: None

    def wrong_type(self) -> int:
        return "many"  # type: ignore[return-value]

    def not_finite(self) -> float:
        return float("nan")

    def scribble(self, data: bytes) -> int:
        """Writes to its own pipe, as memory that a compiler or a driver ruined might."""
        for number in range(3, 100):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.write(number, data)
        return 1

    def scribble_blindly(self) -> int:
        return self.scribble(b"\0\0\0\1{")


class Frail:
    """Checks its device, which is as sound as files in a folder say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._note = ""

    def open(self, note: str) -> str:
        self._note = note
        with (self._folder / "opened").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return note or f"found out by {os.getpid()}"

    def check(self) -> None:
        """Fails in every worker, or in those of one place, as a file says."""
        shortage = self._folder / "shortage"
        if shortage.exists() and (checks := int(shortage.read_text())) > 0:
            shortage.write_text(str(checks - 1))
            raise MachineMemoryError("out of memory")
        for name in ("sick", f"sick-{self.name()}"):
            if (self._folder / name).exists():
                raise LaunchError("a known-good kernel gave a wrong result")

    def note(self) -> str:
        return self._note

    def pid(self) -> int:
        return os.getpid()

    def name(self) -> str:
        return Path("/proc/self/comm").read_text().strip()

    def meet(self, others: int) -> str:
        """Waits until so many workers are in this call."""
        (self._folder / f"met-{self.name()}").touch()
        while len(list(self._folder.glob("met-*"))) < others:
            time.sleep(0.005)
        return self.name()

    def fall_ill(self, name: str) -> None:
        (self._folder / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def run_short(self, checks: int) -> None:
        """Dies, and lets as many checks fail."""
        (self._folder / "shortage").write_text(str(checks))
        os.kill(os.getpid(), signal.SIGKILL)

    def ruin(self) -> None:
        """Takes the device of whichever worker runs it."""
        self.fall_ill(f"sick-{self.name()}")


def start_either(folder: Path | None) -> Served | Frail:
    return Served() if folder is None else Frail(folder)


def start_laden(ballast: bytes) -> Served:
    """A factory that is big when pickled."""
    assert ballast is not None
    return Served()


def start_broken() -> Served:
    return Served(start_fails=True)


def start_dying() -> Served:
    os._exit(7)


def parent(folder: str) -> None:
    """A parent process with one busy worker; writes the worker's pid and waits to be killed."""
    from evoengine.device.workers.pool import WorkerPool

    pool = WorkerPool(Served, 1, 600.0)
    pid = pool.submit("pid").result()
    pool.submit("spin")
    (Path(folder) / "pid.tmp").write_text(str(pid))
    (Path(folder) / "pid.tmp").rename(Path(folder) / "pid")
    time.sleep(600)


def speaker() -> None:
    """A parent process whose worker writes to its standard output."""
    from evoengine.device.workers.pool import WorkerPool

    with WorkerPool(Served, 1, 600.0) as pool:
        pool.submit("say", "from the worker\n").result()
    print("from the search")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        parent(sys.argv[1])
    else:
        speaker()


def warm_up(folder: Path) -> None:
    """Notes its process in a file of its place's name, which also says how this ends."""
    place = os.environ["PLACE"]
    (folder / place).write_text(str(os.getpid()))
    if place == "dies":
        os._exit(3)
    if place == "fails":
        raise LaunchError("too cold")
