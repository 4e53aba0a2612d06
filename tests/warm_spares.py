"""Spare processes that a call of :mod:`tests.warm_server` uses instead of the processes that it spawns.

A search starts its fork servers and helpers with multiprocessing's method ``spawn``. Each imports the package, and the
inspection of a winner imports torch: four seconds of CPU time per search. A spare is forked from the call's process
before the call begins, so that all modules are loaded and no thread runs, and waits. When the call spawns a process, a
spare receives the command, the environment and the open files that the new process would get, and executes the command.
Its parent is the call's process, as that of a spawned process is. A call that spawns more processes than there are
spares starts the others as usual.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import util
from pathlib import Path
from typing import Any, Final, NoReturn

_HEADER: Final = struct.Struct("<I")
"""Length of a command, before its JSON."""
_MOST_FILES: Final = 64
_FREE_NUMBER: Final = 512
"""Received files are moved above this number before they get the numbers that the command names."""
_MARK: Final = "--multiprocessing-fork"
_BLOCKED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A spawned process starts with these signals blocked, and then ignores them."""


def keep_spares(count: int, end_as: Callable[[Callable[[], None]], NoReturn]) -> None:
    """Forks spares, and makes multiprocessing use them from now on.

    Args:
        count: Number of spares.
        end_as: Runs an action and ends the process.
    """
    spares: list[tuple[int, socket.socket]] = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for end in (ours, *(end for _, end in spares)):
                end.close()  # a spare ends when the call's process, which holds the other end, has ended
            end_as(partial(exec, _wait_for_command(theirs), {"__name__": "__main__"}))
        theirs.close()
        spares.append((pid, ours))
    spawn = util.spawnv_passfds

    def start(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        words = [os.fsdecode(word) for word in args]
        if _MARK not in words or not spares:  # the resource tracker, whose imports are few, is started as usual
            return spawn(path, args, passfds)
        pid, end = spares.pop(0)
        with end:
            numbers = sorted(set(passfds))
            command = {"args": words, "files": numbers, "environment": dict(os.environ), "folder": str(Path.cwd())}
            body = json.dumps(command).encode()
            socket.send_fds(end, [_HEADER.pack(len(body))], numbers)
            end.sendall(body)
        return pid

    util.spawnv_passfds = start


def _wait_for_command(commands: socket.socket) -> str:
    """Waits until this process is used, and takes over environment, folder and open files; returns the code to run."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    head, received, _, _ = socket.recv_fds(commands, _HEADER.size, _MOST_FILES)
    if not head:
        os._exit(0)
    with commands, commands.makefile("rb") as stream:
        command = json.loads(stream.read(_HEADER.unpack(head)[0]))
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FREE_NUMBER) for number in received]
    for number in received:
        os.close(number)
    for number, wanted in zip(moved, command["files"], strict=True):
        os.dup2(number, wanted, inheritable=False)
        os.close(number)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv = ["-c", _MARK]
    code: str = command["args"][command["args"].index("-c") + 1]
    return code
