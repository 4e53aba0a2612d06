"""A PTX emulator: executes what NVRTC compiled, in NumPy, vectorised over all lanes of a batch of CTAs.

``Emulator(ptx).launch(grid, block, args)`` runs a kernel on NumPy arrays and returns a :class:`LaunchReport`. Every
access is checked: a kernel that reads or writes what it must not ends in an :class:`EmulatorError` that names the PTX
line, the source line, the block, the thread and the address.

The names below are imported when they are first asked for: a search on a GPU needs the latency model and little else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from evoengine.emulator.checks.faults import EmulatorError, EmulatorTimeoutError, Fault, FaultKind
    from evoengine.emulator.counters.report import LaunchReport, Pipe
    from evoengine.emulator.emulator import Emulator
    from evoengine.emulator.memory.global_memory import Buffer, GlobalMemory
    from evoengine.emulator.memory.param_block import pack_arguments

__all__ = [
    "Buffer",
    "Emulator",
    "EmulatorError",
    "EmulatorTimeoutError",
    "Fault",
    "FaultKind",
    "GlobalMemory",
    "LaunchReport",
    "Pipe",
    "pack_arguments",
]

_HOMES: Final = {
    "memory.param_block": ("pack_arguments",),
    "emulator": ("Emulator",),
    "checks.faults": ("EmulatorError", "EmulatorTimeoutError", "Fault", "FaultKind"),
    "memory.global_memory": ("Buffer", "GlobalMemory"),
    "counters.report": ("LaunchReport", "Pipe"),
}
"""Modules, and what is theirs."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
