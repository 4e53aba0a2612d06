"""Identity of a process, its id and its start time, which tells a reused id apart; its priority."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_NICENESS: Final = 10


def process_start(pid: int) -> str:
    """Returns the start time of a process in clock ticks since boot; empty without ``/proc`` or such a process.

    A zombie has the start ``zombie``: it has ended.
    """
    fields = _stat(pid)
    return "" if not fields else "zombie" if fields[0] in ("Z", "X") else fields[19]


def process_age_s() -> float:
    """Returns the seconds since this process was started; its own CPU time where there is no ``/proc``."""
    ticks = process_start(os.getpid())
    if not ticks:
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped (SIGSTOP, Ctrl-Z); False without ``/proc``."""
    return _stat(pid)[:1] == ["T"]


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` from the state on; empty without ``/proc`` or such a process."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid: int, start: str) -> bool:
    """Returns whether the process that had this id and start time still runs."""
    if pid < 1:
        return False  # 0 and negative numbers name groups of processes, which always exist
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    if not (_PROC / "self" / "stat").exists():
        return True
    return bool(start) and process_start(pid) == start


def give_way() -> None:
    """Lowers the priority of the process: one of normal priority that shares a core with it gets nine tenths.

    For processes beside a GPU's worker: the GPU measures nothing while its worker waits for a core.
    """
    os.nice(_NICENESS)
