"""Processes that a library may end at any time: Ray ends one that loses its cluster, without an exception."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from evoengine.device.workers.worker_main import die_with_parent
from evoengine.errors import ClusterLostError
from evoengine.system.stop_signals import STOP_SIGNALS

_DONE: Final = b"."
_DEFECT: Final = 70


def run_in_children(actions: Sequence[Callable[[], int]]) -> int:
    """Runs each action in a child process, while this one forwards stop signals and waits until all have ended.

    Call it before anything starts a thread.

    Args:
        actions: Functions that return the exit code of their process and handle all exceptions.

    Returns:
        The highest exit code.

    Raises:
        ClusterLostError: A child ended before its action did. The others have ended, too.
    """
    children = [_start(action) for action in actions]
    pids = [child.pid for child in children]
    before = {number: signal.signal(number, partial(_hand_on, pids)) for number in STOP_SIGNALS}
    codes = []
    try:
        for child in children:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))
            pids.remove(child.pid)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        done = [os.read(child.reading, 1) for child in children]
        for child in children:
            os.close(child.reading)
    lost = [code for code, text in zip(codes, done, strict=True) if text != _DONE]
    if not lost:
        return max(codes)
    how = signal.Signals(-lost[0]).name if lost[0] < 0 else "Ray"
    raise ClusterLostError(f"the connection to the Ray cluster was lost ({how} ended the search): restart the cluster")


@dataclass(frozen=True)
class _Child:
    pid: int
    reading: int
    """File descriptor from which the mark of an action that has ended is read."""


def _start(action: Callable[[], int]) -> _Child:
    reading, writing = os.pipe()
    parent_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = _DEFECT
        try:
            os.setpgid(0, 0)  # signals of the terminal reach the parent alone, which hands each on once
            die_with_parent(parent_pid)
            code = action()
            sys.stdout.flush()
            os.write(writing, _DONE)
        finally:
            os._exit(code)  # nothing of the parent may run twice
    os.close(writing)
    return _Child(pid, reading)


def _hand_on(pids: Sequence[int], number: int, _frame: object) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
