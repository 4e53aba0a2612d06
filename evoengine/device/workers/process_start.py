"""Start of the processes beside this one: fork servers and sidecars."""

from __future__ import annotations

import multiprocessing
from multiprocessing.process import BaseProcess

from evoengine.errors import UsageError
from evoengine.system.main_module import main_left_out
from evoengine.system.secrets import keys_hidden
from evoengine.system.stop_signals import stop_signals_blocked


def start_process(process: BaseProcess) -> None:
    """Starts a spawned process without the keys of language models and without the program's main module.

    Raises:
        UsageError: This process is daemonic, and Python allows such a process no children.
        OSError: Processes or memory are exhausted.
    """
    if multiprocessing.current_process().daemon:
        raise UsageError(
            "a search starts processes, which Python forbids in a daemonic process such as a worker of "
            "multiprocessing.Pool: use concurrent.futures.ProcessPoolExecutor, or call evoengine.tune"
        )
    with keys_hidden(), stop_signals_blocked(), main_left_out():
        process.start()
