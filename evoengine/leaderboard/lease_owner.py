"""Owners of leases: names of processes, and whether a process is still alive."""

from __future__ import annotations

import os
import re
import socket
import uuid
from typing import Final

from evoengine.system.processes import is_running, is_stopped, process_start

_RETIRED: Final[set[str]] = set()
_OWNER: Final = re.compile(r"(.*):([1-9][0-9]{0,9}):([0-9]*):[^:]*", re.DOTALL | re.ASCII)


def new_owner() -> str:
    """Returns a new name for one search in this process: ``host:pid:start:unique``."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{process_start(pid)}:{uuid.uuid4().hex[:8]}"


def retire_owner(owner: str) -> None:
    """Marks an owner of this process as ended, although its process goes on: an error may have left it leases."""
    _RETIRED.add(owner)


def is_alive(owner: str) -> bool:
    """Returns whether an owner's process runs on this host, and is not stopped.

    A process of another host counts as dead: a leaderboard is a local file (WAL does not work over a network), so
    another host name means that a container was removed. So does a process of another container with the same host
    name, a name that is malformed, and a process that is stopped (SIGSTOP, Ctrl-Z), because it may never continue. If
    such a process runs after all, both searches evaluate a candidate and the leaderboard keeps the first row; no search
    waits for a lease that may never end.
    """
    match = _OWNER.fullmatch(owner) if isinstance(owner, str) else None  # a damaged file may hold bytes
    if match is None or owner in _RETIRED or match[1] != socket.gethostname():
        return False
    pid = int(match[2])
    return is_running(pid, match[3]) and not is_stopped(pid)
