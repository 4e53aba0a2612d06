"""Settings of Python's garbage collector for a process that runs one call."""

from __future__ import annotations

import atexit
import gc
from typing import Final

_YOUNG_OBJECTS: Final = 20_000
"""Containers that a process allocates between two collections; Python's own default is 700."""


def collect_rarely() -> None:
    """Makes the collector of reference cycles run rarely in this process, and not at its end.

    The imported packages are hundreds of thousands of objects, which every full collection visits and none frees: that
    is a fifth of the CPU time of a small search. Objects without cycles, such as arrays, are freed as before.
    """
    gc.set_threshold(_YOUNG_OBJECTS)
    atexit.register(gc.freeze)  # the interpreter collects several times before it ends
