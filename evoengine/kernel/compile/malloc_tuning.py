"""Tuning of glibc's malloc for processes that compile, emulate or examine many kernels."""

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
"""Free memory that the process keeps: more than any compilation needs."""
_LARGEST_BLOCK_BYTES: Final = 2**25
"""Larger blocks are mapped separately; this is the largest threshold that glibc accepts on every 64-bit machine."""
_GROWN_BYTES: Final = 2**27
"""Step in which the heap grows; a compilation needs about 100 MB."""
_HUGE_BYTES: Final = 2**21
_HEAP: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*\[heap\]$", re.MULTILINE)


def keep_freed_memory() -> None:
    """Keeps freed memory in this process, on huge pages, for its next compilation or emulation.

    By default glibc returns the memory to the kernel after each compilation and gets it back page by page, which costs
    thousands of page faults per compilation. Does nothing with another C library; huge pages are requested only if the
    heap is listed in ``/proc/self/maps``.
    """
    libc: Any = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    libc.mallopt(_M_TOP_PAD, _GROWN_BYTES)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
    libc.malloc.restype = ctypes.c_void_p
    libc.free(ctypes.c_void_p(libc.malloc(_LARGEST_BLOCK_BYTES // 2)))  # grows the heap by _GROWN_BYTES
    try:
        found = _HEAP.search(Path("/proc/self/maps").read_text())
    except OSError:
        return
    if found is not None:
        start, end = (int(address, 16) for address in found.groups())
        start = -(-start // _HUGE_BYTES) * _HUGE_BYTES
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(max(0, end - start)), _MADV_HUGEPAGE)
