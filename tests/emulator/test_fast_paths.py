"""Fast paths compute the same bits as the general code."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from evoengine.emulator.batch.async_copy import AsyncCopies
from evoengine.emulator.batch.shared_memory import SharedMemory
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.words import collapse_equal_rows
from evoengine.emulator.semantics.floats import fma_f
from evoengine.emulator.semantics.mma import add_each, half_to_float, multiply


def test_all_halves_widen_exactly() -> None:
    every = np.arange(2**16, dtype=np.uint16)
    for bits in (every, every[every & 0x7C00 != 0x7C00], every[:0]):  # with infinities and NaN, and without
        np.testing.assert_array_equal(half_to_float(bits), bits.view(np.float16).astype(np.float32))


def fragments(values: np.ndarray) -> list[np.ndarray]:
    """Fragment registers of f16 tiles ``[warps, rows, k]``: for each 8 columns along k, one register per 8 rows."""
    warps, rows, depth = values.shape
    bits = values.astype(np.float16).view(np.uint32).reshape(warps, rows // 8, 8, depth // 8, 4)
    return [
        np.ascontiguousarray(bits[:, row, :, step]).reshape(1, warps * 32)
        for step in range(depth // 8)
        for row in range(rows // 8)
    ]


@pytest.mark.parametrize(("warps", "steps", "halves", "columns"), [(1, 1, 1, 1), (3, 2, 2, 4), (40, 4, 2, 16)])
def test_a_product_of_small_integers_is_exact(warps: int, steps: int, halves: int, columns: int) -> None:
    rng = np.random.default_rng(warps)
    depth = 8 * halves * steps
    a, b = rng.integers(-9, 10, (warps, 16, depth)), rng.integers(-9, 10, (warps, 8 * columns, depth))
    right = [
        register for column in range(columns) for register in fragments(b[:, 8 * column : 8 * column + 8])
    ]  # for each column, all K steps
    got = multiply("f16", fragments(a), right, steps, halves, warps * 32)
    got = add_each(got, [np.full((1, 1), number, np.float32) for number in range(4 * columns)])
    want = np.matmul(a, b.transpose(0, 2, 1)).reshape(warps, 2, 8, columns, 4, 2).transpose(3, 1, 5, 0, 2, 4)
    want = want.reshape(4 * columns, 1, warps * 32) + np.arange(4 * columns)[:, None, None]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shapes", [((3, 32),) * 3, ((3, 1), (1, 32), (1, 1)), ((3, 1), (3, 1), (1, 32))])
def test_fma_rounds_once_for_all_shapes(shapes: tuple[tuple[int, int], ...]) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    want = (a.astype(np.longdouble) * b + c).astype(np.float32)
    np.testing.assert_array_equal(fma_f(a, b, c), want)


def test_separated_ctas_have_separate_states() -> None:
    """Bytes that one CTA has written stay unwritten in the others, even after an access common to all CTAs."""
    shared = SharedMemory(2, 512, 64)
    lanes = np.arange(64, dtype=np.uint32)[None, :]
    words = np.ones((1, 64), np.uint32)
    shared.scatter(lanes * np.uint32(4), words, 4, None, 0)
    shared.gather(lanes * np.uint32(4), 4, None, 0)
    first = np.array([[True], [False]])
    shared.scatter(lanes * np.uint32(4) + np.uint32(256), words, 4, first, 1)
    shared.gather(lanes * np.uint32(4) + np.uint32(256), 4, first, 2)
    with pytest.raises(SiteFault) as caught:
        shared.gather(lanes * np.uint32(4) + np.uint32(256), 4, None, 3)
    assert (caught.value.kind, caught.value.cta, caught.value.lane) == (FaultKind.UNINITIALISED_READ, 1, 0)


def test_a_copy_stays_in_flight_in_ctas_that_do_not_wait() -> None:
    shared = SharedMemory(2, 1024, 64)
    copies = AsyncCopies(shared)
    at = np.arange(64, dtype=np.uint32)[None, :] * np.uint32(16)
    copies.issue(at, np.zeros((2, 64), np.complex128), 16, None, 0)
    copies.commit(None)
    second = np.array([[False], [True]])
    copies.wait(0, second)
    copies.publish(np.broadcast_to(second, (2, 64)))
    shared.gather(at, 16, second, 1)
    with pytest.raises(SiteFault) as caught:
        shared.gather(at, 16, None, 2)
    assert (caught.value.kind, caught.value.cta) == (FaultKind.CP_ASYNC_NOT_WAITED, 0)


def test_ctas_with_different_shared_contents_are_separate() -> None:
    shared = SharedMemory(3, 512, 64)
    at = np.arange(64, dtype=np.uint32)[None, :] * np.uint32(4)
    own = np.arange(3, dtype=np.uint32)[:, None]

    def contents() -> np.ndarray:
        return np.broadcast_to(shared.gather(at, 4, None, 0), (3, 64))

    shared.scatter(at, at + np.uint32(1), 4, None, 0)  # the same in all CTAs
    np.testing.assert_array_equal(contents(), np.broadcast_to(at + 1, (3, 64)))
    second = copy.copy(shared)
    second.restrict(slice(1, 2))
    second.scatter(at, at + np.uint32(7), 4, None, 0)  # one CTA is split off
    np.testing.assert_array_equal(second.gather(at, 4, None, 0), at + 7)
    shared.scatter(at, np.full((1, 1), 9, np.uint32), 4, own == 1, 0)  # only one CTA stores
    np.testing.assert_array_equal(contents(), np.where(own == 1, 9, at + 1))
    shared.scatter(at, own + at, 4, None, 0)  # different values
    np.testing.assert_array_equal(contents(), own + at)
    shared.scatter(at ^ (own * np.uint32(4)), at, 4, None, 0)  # different addresses
    np.testing.assert_array_equal(contents(), at ^ (own * np.uint32(4)))
    shared.scatter(at, at, 4, None, 0)  # the same again
    np.testing.assert_array_equal(contents(), np.broadcast_to(at, (3, 64)))


def test_rows_are_collapsed_only_if_all_bits_are_equal() -> None:
    """Equal NaN bits, such as the poison of new memory, are equal; zeros of opposite sign are not."""
    poison = np.full((2, 8), 0xFF, np.uint64).repeat(2, axis=1).view(np.complex128)
    assert collapse_equal_rows(poison).shape == (1, 8)
    zeros = np.zeros((2, 8), np.complex128)
    assert collapse_equal_rows(zeros).shape == (1, 8)
    zeros[1, 3] = complex(-0.0, 0.0)
    assert collapse_equal_rows(zeros).shape == (2, 8)


def test_only_the_copying_warp_may_read_landed_data() -> None:
    """Before the barrier only the copying warp may read; with common and with separate states of the CTAs."""
    at = np.arange(64, dtype=np.uint32)[None, :] * np.uint32(16)
    for lanes in (None, np.ones((2, 64), np.bool_)):
        shared = SharedMemory(2, 1024, 64)
        copies = AsyncCopies(shared)
        copies.issue(at, np.zeros((1, 1), np.complex128), 16, lanes, 0)
        copies.wait(None, lanes)
        shared.gather(at, 16, None, 1)
        shared.gather(np.repeat(at, 2, axis=0), 16, None, 2)
        with pytest.raises(SiteFault) as caught:
            shared.gather(at[:, ::-1], 16, None, 3)
        assert (caught.value.kind, caught.value.cta, caught.value.lane) == (FaultKind.CP_ASYNC_NOT_WAITED, 0, 0)
        shared.gather(at[:, ::-1], 16, np.zeros((1, 64), np.bool_), 4)  # no active lane
