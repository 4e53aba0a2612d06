"""Source lines for a fault of a kernel that was compiled without them.

A search compiles without line information, which makes PTX that is shorter to read by two fifths. A kernel that faults
is compiled once more, with lines, and run again: the instructions are the same, and so is the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evoengine.emulator.checks.faults import EmulatorError, Fault
from evoengine.errors import CandidateError, EvoEngineError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel

_LINE = ".loc\t"
"""How NVRTC writes that a source line begins."""


def with_lines(error: EmulatorError, kernel: Kernel, again: Callable[[Kernel], object]) -> EmulatorError:
    """The error that the kernel would have raised with line information.

    Args:
        error: what it raised.
        kernel: as it ran.
        again: runs another binary of the same source in the same way.

    Returns:
        The error itself where nothing else can be found out: the kernel has lines already, its source does not
        compile, or it does not fault in the same way.
    """
    lined = _compiled_with_lines(kernel)
    if lined is None:
        return error
    try:
        again(lined)
    except EmulatorError as told:
        return told if _what(told.fault) == _what(error.fault) else error
    except CandidateError:
        pass
    return error


def _what(fault: Fault) -> tuple[object, ...]:
    """What of a fault is the same with and without lines."""
    return fault.kind, fault.block, fault.thread, fault.address


def _compiled_with_lines(kernel: Kernel) -> Kernel | None:
    if _LINE in kernel.binary.ptx:
        return None
    try:
        binary = Compiler(None).compile(kernel.source, kernel.binary.arch)
    except EvoEngineError:
        return None
    return replace(kernel, binary=binary) if _LINE in binary.ptx else None
