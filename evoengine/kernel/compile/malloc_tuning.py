"""The heap of a process that compiles, or emulates, one kernel after the other."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, Final

# Options of mallopt(3) in glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_MADV_HUGEPAGE: Final = 14

_KEPT_BYTES: Final = 2**30
"""More than any compilation takes."""
_LARGEST_BLOCK_BYTES: Final = 2**25
"""Blocks above this are mapped on their own; the largest threshold that glibc takes on every 64-bit machine."""
_GROWN_BYTES: Final = 2**27
"""What a compilation takes is about 100 MB."""
_HUGE_BYTES: Final = 2**21
_HEAP: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*\[heap\]$", re.MULTILINE)


def keep_freed_memory() -> None:
    """Has this process keep the memory that it frees, on huge pages, for its next compilation or emulation.

    By default glibc gives it back to the kernel after each compilation by NVRTC and takes it again page by page: 5,700
    page faults a compilation, 1,200 for the tensor work of one unrolled loop. Does nothing with another C library, and
    asks for no huge pages where there are none.
    """
    libc: Any = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    libc.mallopt(_M_TOP_PAD, _GROWN_BYTES)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
    libc.malloc.restype = ctypes.c_void_p
    libc.free(ctypes.c_void_p(libc.malloc(_LARGEST_BLOCK_BYTES // 2)))  # the heap grows, and stays
    try:
        found = _HEAP.search(Path("/proc/self/maps").read_text())
    except OSError:
        return
    if found is not None:
        start, end = (int(address, 16) for address in found.groups())
        start = -(-start // _HUGE_BYTES) * _HUGE_BYTES
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(max(0, end - start)), _MADV_HUGEPAGE)
