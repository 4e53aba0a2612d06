"""Source lines for faults of kernels that were compiled without line information.

A search compiles without line information, which makes the PTX shorter and faster to parse. A kernel that faults is
compiled again with line information and rerun: its instructions are the same, and so is the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from evoengine.emulator.faults import EmulatorError, Fault
from evoengine.errors import CandidateError, EvoEngineError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel

_LINE: Final = ".loc\t"
"""Directive with which NVRTC marks a source line in PTX."""


def with_lines(error: EmulatorError, kernel: Kernel, again: Callable[[Kernel], object]) -> EmulatorError:
    """Returns the error that the kernel would have raised with line information.

    Args:
        error: Error that the kernel raised.
        kernel: Kernel that raised it.
        again: Function that runs another binary of the same source in the same way.

    Returns:
        The new error, or ``error`` itself if the kernel already has line information, its source does not compile, or
        the rerun does not fault in the same way.
    """
    lined = _compiled_with_lines(kernel)
    if lined is None:
        return error
    try:
        again(lined)
    except EmulatorError as located:
        return located if _identity(located.fault) == _identity(error.fault) else error
    except CandidateError:
        pass
    return error


def _identity(fault: Fault) -> tuple[object, ...]:
    """Returns the fields of a fault that do not depend on line information."""
    return fault.kind, fault.block, fault.thread, fault.address


def _compiled_with_lines(kernel: Kernel) -> Kernel | None:
    if _LINE in kernel.binary.ptx:
        return None
    try:
        binary = Compiler(None).compile(kernel.source, kernel.binary.arch)
    except EvoEngineError:
        return None
    return replace(kernel, binary=binary) if _LINE in binary.ptx else None
