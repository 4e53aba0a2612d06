"""Shared memory that holds NaN before a call, so that no kernel computes with what another call left there.

A kernel that reads shared memory before it is written would otherwise find the results of its previous call, which are
often right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

ENTRY: Final = "evo_poison_shared_memory"
THREADS: Final = 1024
_CTAS_PER_SM: Final = 2
"""They run one after the other; an SM whose first CTA ends early may take the second one of another SM."""

SOURCE: Final = f"""\
// Fills the first `words` words of dynamic shared memory with NaN of fp16, bf16 and f32.
extern "C" __global__ void {ENTRY}(unsigned words) {{
    extern __shared__ volatile unsigned shared[];  // volatile: it is not read here
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) shared[i] = 0xffffffffu;
}}
"""
"""CUDA C++ without a header."""


@dataclass(frozen=True)
class SharedMemoryPoison:
    """Fills the shared memory of all SMs.

    Args:
        function: CuPy's function of the kernel above, which may take ``cta_bytes`` of dynamic shared memory.
        cta_bytes: Bytes that one CTA can have: no two fit on an SM.
        sms: Number of SMs.
    """

    function: Any
    cta_bytes: int
    sms: int

    def fill(self) -> None:
        """Enqueues the launch on the current stream."""
        words = np.uint32(self.cta_bytes // 4)
        self.function((_CTAS_PER_SM * self.sms,), (THREADS,), (words,), shared_mem=self.cta_bytes)
