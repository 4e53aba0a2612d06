"""Classification of errors that the machine causes and no candidate: memory, disk, open files, processes.

Every process uses this one table: workers before they report an error, the search loop before it records one, and the
command line before it calls an error internal.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from evoengine.errors import EvoEngineError, MachineError, MachineMemoryError, MissingDependencyError

_MAX_DETAIL: Final = 120


@dataclass(frozen=True)
class _Kind:
    """One way in which a machine fails."""

    problem: str
    remedy: str
    error: type[MachineError] = MachineError


_MEMORY: Final = _Kind(
    "out of memory",
    "end other programs, raise the limit ('ulimit -v', cgroup) or give fewer --workers",
    MachineMemoryError,
)
_PROCESSES: Final = _Kind(
    "no more processes or threads", "end other programs or raise the limit ('ulimit -u')", MachineMemoryError
)
_DISK: Final = _Kind("the disk is full", "free some space, also in the temporary folder ($TMPDIR)")
_READ_ONLY: Final = _Kind("the file system is read-only", "mount it writable, or set $TMPDIR to a writable folder")
_FILES: Final = _Kind("too many open files", "close other programs or raise the limit ('ulimit -n')")
_IO: Final = _Kind("input/output error", "check the disk")
_LIBRARY: Final = _Kind("a library cannot be loaded", "check memory, disk and the installed packages with 'doctor'")

_BY_ERRNO: Final[Mapping[int, _Kind]] = {
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: _PROCESSES,
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EFBIG: _DISK,
    errno.EROFS: _READ_ONLY,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EIO: _IO,
    errno.ESTALE: _IO,
}
_BY_TEXT: Final[tuple[tuple[str, _Kind], ...]] = (
    ("cannot allocate memory", _MEMORY),
    ("can't allocate memory", _MEMORY),
    ("failed to map segment", _MEMORY),
    ("cannot map", _MEMORY),
    ("mmap failed", _MEMORY),
    ("bad_alloc", _MEMORY),
    ("memory allocation fail", _MEMORY),
    ("memory allocation still failed", _MEMORY),
    ("out of memory", _MEMORY),
    ("out_of_memory", _MEMORY),
    ("cudaerrormemoryallocation", _MEMORY),
    ("can't start new thread", _PROCESSES),
    ("cannot create thread", _PROCESSES),
    ("resource temporarily unavailable", _PROCESSES),
    ("no space left on device", _DISK),
    ("disk quota exceeded", _DISK),
    ("file too large", _DISK),
    ("read-only file system", _READ_ONLY),
    ("no usable temporary directory", _DISK),
    ("too many open files", _FILES),
    ("input/output error", _IO),
    ("failed to open libnvrtc-builtins", _LIBRARY),
    ("cannot read file data", _LIBRARY),
    ("file too short", _LIBRARY),
)
"""Texts of libraries that report such faults without an error number; lower case."""


def machine_fault(error: BaseException) -> MachineError | None:
    """Returns the machine's fault behind an error; None if there is none.

    Errors of candidates are never the machine's: a kernel whose own workspace exceeds the GPU's memory is one, too.
    """
    if isinstance(error, MachineError):
        return error
    if isinstance(error, MissingDependencyError) and error.__cause__ is not None:
        return machine_fault(error.__cause__)
    if isinstance(error, EvoEngineError):
        return None
    if isinstance(error, MemoryError):
        return _error(_MEMORY, str(error))
    if isinstance(error, OSError) and error.errno is not None:
        kind = _BY_ERRNO.get(error.errno)
        if kind is not None:
            return kind.error(f"{error.filename or 'this machine'}: {error.strerror}")
    return machine_fault_in(str(error))


def machine_fault_in(text: str) -> MachineError | None:
    """Returns the machine's fault that the message of a library reports; None if it reports none."""
    low = text.lower()
    kind = next((kind for sign, kind in _BY_TEXT if sign in low), None)
    return None if kind is None else _error(kind, text)


def with_remedy(fault: MachineError) -> str:
    """Returns the line of a fault with what the user can mend, which the line of the operating system lacks."""
    text = str(fault)
    kind = next((kind for sign, kind in _BY_TEXT if sign in text.lower()), None)
    return text if kind is None or kind.remedy in text else f"{text}: {kind.remedy}"


def _error(kind: _Kind, detail: str) -> MachineError:
    line = " ".join(detail.split())
    shown = f" ({line[:_MAX_DETAIL]})" if line else ""
    return kind.error(f"this machine: {kind.problem}{shown}: {kind.remedy}")
