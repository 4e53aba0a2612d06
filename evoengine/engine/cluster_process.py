"""A process that a library may end at any time: Ray ends one that loses its cluster, without an exception."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from evoengine.device.workers.worker_main import die_with_parent
from evoengine.errors import ClusterLostError
from evoengine.system.stop_signals import STOP_SIGNALS

_DONE: Final = b"."
_DEFECT: Final = 70


def run_in_child(action: Callable[[], int]) -> int:
    """Runs an action in a child process, while this one waits for its end and hands stop signals on.

    Call it before anything starts a thread.

    Args:
        action: Returns the exit code; it handles all exceptions.

    Raises:
        ClusterLostError: The child ended before the action did.
    """
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
    before = {number: signal.signal(number, partial(_hand_on, pid)) for number in STOP_SIGNALS}
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        done = os.read(reading, 1)
        os.close(reading)
    if done == _DONE:
        return status
    how = signal.Signals(-status).name if status < 0 else "Ray"
    raise ClusterLostError(f"the connection to the Ray cluster was lost ({how} ended the search): restart the cluster")


def _hand_on(pid: int, number: int, _frame: object) -> None:
    os.kill(pid, number)
