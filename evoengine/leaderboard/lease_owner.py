"""Who holds a claim, and whether that process still lives."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path


def new_owner() -> str:
    """A name for one search in this process: ``host:pid:start:unique``."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{_start_of(pid)}:{uuid.uuid4().hex[:8]}"


def is_alive(owner: str) -> bool:
    """Whether the process behind an owner still runs here; a process of another host counts as gone.

    A leaderboard is a local file (WAL does not work over a network), so another host name means that a container was
    thrown away.
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
    """Start time of a process in clock ticks, so that a reused pid is not mistaken; empty where there is no /proc.

    A zombie counts as gone: it has no start.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "zombie" if fields[0] == "Z" else fields[19]
