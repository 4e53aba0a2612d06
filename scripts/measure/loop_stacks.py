#!/usr/bin/env python3
"""Samples what the thread of a search's loop does; prints the functions that it is in, with their share of the samples.

    python scripts/measure/loop_stacks.py search --problem 16x12x197x64 --device cuda:all --budget 1000 --no-energy

Runs the command in this process beside a thread that reads the main thread's stack each few milliseconds. A function's
share contains that of the functions it calls. The thread that samples takes some of Python's lock: rates are lower than
without it.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final, Self

_EACH_S: Final = 0.004
_SHOWN: Final = 60


class Sampler:
    """Counts the functions on the stack of one thread."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._stop = threading.Event()
        self._sampling = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.samples = 0
        self.within: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._sampling.join()

    def _run(self) -> None:
        while not self._stop.wait(_EACH_S):
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the documented way to read a stack
            self.samples += 1
            self.within.update(_functions(frame))


def _functions(frame: FrameType | None) -> set[str]:
    """Names of the functions on a stack, each once."""
    found = set()
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        found.add(f"{file.parent.name}/{file.name}: {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def main() -> int:
    """Runs the command of the arguments and prints the shares."""
    for library in ("OPENBLAS", "OMP", "MKL"):  # as the command line does, before NumPy is imported
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    import common  # on the search path: this script's folder

    from evoengine.cli.app import main as run_command

    parser = common.parser(__doc__)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="Command of evoengine with its options.")
    sys.argv = ["evoengine", *parser.parse_args().command]
    with Sampler(threading.get_ident()) as sampler:
        try:
            run_command()
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
    for function, count in sampler.within.most_common(_SHOWN):
        print(f"{count / max(sampler.samples, 1):6.1%}  {function}")
    return status


if __name__ == "__main__":  # worker processes import this module, too
    sys.exit(main())
