"""A PTX emulator: executes what NVRTC compiled, in NumPy, vectorised over all lanes of a batch of CTAs.

``Emulator(ptx).launch(grid, block, args)`` runs a kernel on NumPy arrays and returns a :class:`LaunchReport`. Every
access is checked: a kernel that reads or writes what it must not ends in an :class:`EmulatorError` that names the PTX
line, the source line, the block, the thread and the address.
"""

from __future__ import annotations

from evoengine.emulator.arguments import pack_arguments
from evoengine.emulator.emulator import Emulator
from evoengine.emulator.faults import EmulatorError, EmulatorTimeoutError, Fault, FaultKind
from evoengine.emulator.memory import Buffer, GlobalMemory
from evoengine.emulator.report import LaunchReport, Pipe

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
