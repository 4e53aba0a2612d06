"""PTX emulator: executes the PTX that NVRTC compiled, in NumPy, vectorised over all lanes of a batch of CTAs.

``Emulator(ptx).launch(grid, block, args)`` runs a kernel on NumPy arrays and returns a :class:`LaunchReport`. Every
access is checked: an invalid read or write ends the launch with an :class:`EmulatorError` that names the PTX line, the
source line, the block, the thread and the address.

The public names are imported on first use, because a search on a GPU needs only a few of these modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from evoengine.emulator.counters.report import LaunchReport
    from evoengine.emulator.emulator import Emulator
    from evoengine.emulator.faults import EmulatorError, EmulatorTimeoutError, Fault, FaultKind
    from evoengine.emulator.memory.global_memory import Buffer, GlobalMemory
    from evoengine.emulator.memory.param_block import pack_arguments
    from evoengine.emulator.ptx.pipes import Pipe

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

PUBLIC_MODULES = ("counters", "emulator", "faults", "memory", "ptx", "screen")
"""Modules and packages that other packages import."""

_MODULES: Final = {
    "counters.report": ("LaunchReport",),
    "emulator": ("Emulator",),
    "faults": ("EmulatorError", "EmulatorTimeoutError", "Fault", "FaultKind"),
    "memory.global_memory": ("Buffer", "GlobalMemory"),
    "memory.param_block": ("pack_arguments",),
    "ptx.pipes": ("Pipe",),
}
"""Public names by the module that defines them."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
