"""Tensors whose rows a kernel sees far apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind
from evoengine.emulator.memory.far_memory import MOST_HEADS, FarMemory

SIZES, COLUMNS = (2, 3, 20), 8
"""Batch entries, heads and rows; 16-bit columns."""
NEGATE = """
extern "C" __global__ void f(unsigned short* x, long long batch, long long head, int row) {
  x += blockIdx.z * batch + blockIdx.y * head + (OFFSET)blockIdx.x * row + threadIdx.x;
  *x = ~*x; }
"""


def negated(ptx: str, threads: int = COLUMNS, rows: int = SIZES[2]) -> np.ndarray:
    """Negates all elements of a tensor whose batch entries and heads have gaps in memory; returns the contents."""
    memory, sizes = FarMemory(), (*SIZES[:2], rows)
    near = (4 * rows * 2 * COLUMNS, rows * 2 * COLUMNS, 2 * COLUMNS)
    buffer = memory.alloc(np.arange(2 * 4 * rows * COLUMNS, dtype=np.uint16))
    far = memory.spread(buffer, sizes, near, 2 * COLUMNS)
    batch, head, row = (stride // 2 for stride in far.strides_bytes)
    arguments = [np.uint64(far.address), np.int64(batch), np.int64(head), np.int32(row)]
    Emulator(ptx).launch(sizes[::-1], threads, arguments, memory=memory)
    return memory.read(buffer, np.uint16, (2, 4, rows, COLUMNS))


def test_rows_are_where_the_strides_say(compile_cuda: Callable[..., str]) -> None:
    expected = np.arange(2 * 4 * 20 * COLUMNS, dtype=np.uint16).reshape(2, 4, 20, COLUMNS)
    expected[:, :3] = ~expected[:, :3]
    np.testing.assert_array_equal(negated(compile_cuda(NEGATE.replace("OFFSET", "long long"))), expected)


@pytest.mark.parametrize(("offset", "threads"), [("int", COLUMNS), ("long long", COLUMNS + 1)])
def test_bytes_between_rows_do_not_exist(compile_cuda: Callable[..., str], offset: str, threads: int) -> None:
    with pytest.raises(EmulatorError) as caught:
        negated(compile_cuda(NEGATE.replace("OFFSET", offset)), threads)
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS


def test_an_offset_that_has_lost_its_upper_bits_hits_no_row(compile_cuda: Callable[..., str]) -> None:
    """With strides that are powers of two it would hit one of the first rows."""
    with pytest.raises(EmulatorError) as caught:
        negated(compile_cuda(NEGATE.replace("OFFSET", "unsigned")), rows=40)
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS


def test_more_heads_than_fit_are_refused() -> None:
    memory = FarMemory()
    buffer = memory.alloc(32)
    with pytest.raises(ValueError, match="heads"):
        memory.spread(buffer, (1, MOST_HEADS + 1, 1), (16, 16, 16), 16)
