"""Owners of leases: names of processes, and whether a process is still alive."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path


def new_owner() -> str:
    """Returns a new name for one search in this process: ``host:pid:start:unique``."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{_start_of(pid)}:{uuid.uuid4().hex[:8]}"


def is_alive(owner: str) -> bool:
    """Returns whether an owner's process runs on this host; a process of another host counts as dead.

    A leaderboard is a local file (WAL does not work over a network), so another host name means that a container was
    removed.
    """
    host, pid_text, start, _ = owner.rsplit(":", 3)
    if host != socket.gethostname():
        return False
    pid = int(pid_text)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _start_of(pid) == start


def _start_of(pid: int) -> str:
    """Returns the start time of a process in clock ticks, which tells a reused pid apart; empty without ``/proc``.

    A zombie has the start ``zombie``, so it counts as dead.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "zombie" if fields[0] == "Z" else fields[19]
