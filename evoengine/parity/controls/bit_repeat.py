"""Repeatability: the same inputs must give the same bits, in every run and under every launch mode."""

from __future__ import annotations

import numpy as np

from evoengine.kernel.call import AttentionOutput
from evoengine.parity.float_bits import same_bits


def difference(first: AttentionOutput, again: AttentionOutput) -> str:
    """What differs between two outputs of the same inputs; empty when nothing does.

    Bits are compared, not numbers: a last bit that comes and goes is a race that was not lost yet, or a state that
    outlives a call.
    """
    if not same_bits(first.o, again.o):
        wrong = first.o != again.o
        batch, head, row, dim = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        where = f"batch {batch}, head {head}, row {row}, dim {dim}"
        return f"the same inputs gave other bits in {int(wrong.sum())} of {wrong.size} elements, first {where}"
    if first.lse is not None and again.lse is not None:
        wrong = first.lse.view(np.uint32) != again.lse.view(np.uint32)
        if wrong.any():
            batch, head, row = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            where = f"batch {batch}, head {head}, row {row}"
            return f"the same inputs gave another log-sum-exp in {int(wrong.sum())} of {wrong.size} rows, first {where}"
    return ""
