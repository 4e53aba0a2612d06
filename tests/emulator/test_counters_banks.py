"""Bank conflicts and sectors of access patterns whose counts follow from the CUDA programming guide."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.emulator.counters import banks

LANES = np.arange(32)
ALL = np.ones((1, 32), np.bool_)


def loads(address: np.ndarray, size: int = 4, active: np.ndarray = ALL) -> tuple[int, int]:
    steps = banks.shared_wavefronts(np.asarray(address).reshape(1, 32), size, active, load=True)
    return int(steps.needed[0]), int(steps.ideal[0])


def stores(address: np.ndarray, size: int = 4) -> tuple[int, int]:
    steps = banks.shared_wavefronts(np.asarray(address).reshape(1, 32), size, ALL, load=False)
    return int(steps.needed[0]), int(steps.ideal[0])


def matrices(address: np.ndarray, count: int = 4) -> tuple[int, int]:
    steps = banks.matrix_wavefronts(np.asarray(address).reshape(1, 32), count, ALL)
    return int(steps.needed[0]), int(steps.ideal[0])


@pytest.mark.parametrize(
    ("stride", "ways"), [(1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (31, 1), (32, 32), (33, 1)]
)
def test_strides_of_words(stride: int, ways: int) -> None:
    assert loads(LANES * stride * 4) == (ways, 1)
    assert stores(LANES * stride * 4) == (ways, 1)


def test_lanes_that_share_a_word_share_its_wavefront() -> None:
    assert loads(np.full(32, 64)) == (1, 1)
    assert loads(LANES // 4 * 4) == (1, 1)
    assert loads(LANES % 2 * 128) == (2, 1)  # two words in one bank, sixteen lanes each
    assert loads(LANES, size=1) == (1, 1)
    assert loads(LANES * 2, size=2) == (1, 1)
    assert loads(LANES * 6, size=2) == (2, 1)  # 192 bytes


def test_a_column_of_a_tile_and_its_padded_form() -> None:
    assert loads(LANES * 32 * 4) == (32, 1)
    assert loads(LANES * 33 * 4) == (1, 1)
    assert loads(LANES * 32 * 4, active=(LANES < 5)[None]) == (5, 1)


def test_inactive_lanes_need_no_wavefronts() -> None:
    assert loads(LANES * 0, active=np.zeros((1, 32), np.bool_)) == (0, 0)
    assert loads(LANES * 16, size=16, active=(LANES < 8)[None]) == (1, 1)
    assert loads(LANES * 16, size=16, active=(LANES % 8 == 0)[None]) == (4, 4)


def test_wide_accesses_are_executed_by_half_and_quarter_warps() -> None:
    assert loads(LANES * 8, size=8) == (2, 2)
    assert loads(LANES * 16, size=16) == (4, 4)  # a row of float4
    assert stores(LANES * 16, size=16) == (4, 4)
    assert loads(LANES * 32, size=16) == (8, 4)  # every other float4: each quarter warp twice
    assert loads(LANES * 128, size=16) == (32, 4)  # rows of 128 bytes: eight lanes in the same four banks
    assert loads(LANES * 16 * 2 + 8, size=8) == (8, 2)
    # Neighbours in different quarters do not conflict: lanes 0 and 8 both take banks 0 to 3.
    assert loads(LANES % 8 * 16 + LANES // 8 * 128, size=16) == (4, 4)


def test_equal_addresses_of_neighbours_halve_a_wide_load() -> None:
    assert loads(LANES // 2 * 16, size=16) == (2, 2)
    assert loads(LANES // 4 * 32 + LANES % 2 * 16, size=16) == (2, 2)  # pairs at distance 2
    assert loads(np.full(32, 0), size=16) == (2, 2)
    assert loads(LANES // 2 * 8, size=8) == (1, 1)
    assert loads(LANES // 8 * 16, size=16) == (2, 2)  # the rows of A in a register-tiled product
    assert stores(LANES // 2 * 16, size=16) == (4, 4)


def test_wavefronts_of_matrix_loads() -> None:
    assert matrices(LANES * 16) == (4, 4)  # 16 x 16 halves, packed
    assert matrices(LANES * 16, count=1) == (1, 1)
    assert matrices(LANES * 16, count=2) == (2, 2)
    row, half = LANES % 16, LANES // 16
    assert matrices(row * 128 + half * 16) == (32, 4)  # rows of 64 halves: 8-way conflict
    assert matrices(row * 128 + (half ^ row % 8) * 16) == (4, 4)  # the same, swizzled by the row
    assert matrices(row * 144 + half * 16) == (4, 4)  # the same, padded by 8 halves
    assert matrices(row * 64 + half * 16) == (16, 4)  # rows of 32 halves: 4-way
    assert matrices(row * 64 + (half ^ row // 2 % 4) * 16) == (4, 4)


def test_shared_atomics_are_serialised() -> None:
    def wavefronts(address: np.ndarray) -> int:
        return int(banks.atomic_wavefronts(address.reshape(1, 32), 4, ALL).needed[0])

    assert wavefronts(LANES * 4) == 1
    assert wavefronts(np.zeros(32, np.int64)) == 32
    assert wavefronts(LANES // 2 * 4) == 2


def sectors(address: np.ndarray, size: int, active: np.ndarray = ALL) -> tuple[int, int]:
    steps = banks.global_sectors(np.asarray(address).reshape(1, 32), size, active)
    return int(steps.needed[0]), int(steps.ideal[0])


def test_sectors_of_global_accesses() -> None:
    base = 0x7000_0000_0400
    assert sectors(base + LANES * 4, 4) == (4, 4)
    assert sectors(base + 16 + LANES * 4, 4) == (5, 4)  # misaligned by half a sector
    assert sectors(base + LANES * 8, 4) == (8, 4)  # every other word
    assert sectors(base + LANES * 128, 4) == (32, 4)
    assert sectors(np.full(32, base), 4) == (1, 1)
    assert sectors(base + LANES * 16, 16) == (16, 16)
    assert sectors(base + LANES // 8 * 4096 + LANES % 8 * 16, 16) == (16, 16)  # four rows of 128 bytes
    assert sectors(base + LANES, 1) == (1, 1)
    assert sectors(base + LANES * 4, 4, (LANES < 3)[None]) == (1, 1)


def copied(source: np.ndarray, target: np.ndarray, size: int, active: np.ndarray = ALL) -> tuple[int, int]:
    route = banks.copy_route(source.reshape(1, 32).astype(np.uint64), target.reshape(1, 32).astype(np.uint32))
    steps = banks.copy_sectors(route.astype(np.int64), size, active)
    return int(steps.needed[0]), int(steps.ideal[0])


def test_sectors_of_copies_to_shared_memory() -> None:
    """Counts as measured on an H200 by ``scripts/measure/check_counters.py``."""
    base, row, piece = 0x7000_0000_0400, LANES // 8, LANES % 8
    rows = base + row * 4096 + piece * 16
    assert copied(rows, row * 128 + piece * 16, 16) == (16, 16)
    assert copied(rows, row * 128 + (piece ^ row) * 16, 16) == (16, 16)  # swizzled within a line
    assert copied(rows, row * 144 + piece * 16, 16) == (18, 16)  # a sector of rows 1 and 3 straddles two lines
    assert copied(rows, 144 * 4 + row * 144 + piece * 16, 16) == (18, 16)
    assert copied(rows, row * 160 + piece * 16, 16) == (16, 16)  # padded by whole sectors
    assert copied(base + piece * 16, row * 144 + piece * 16, 16) == (18, 4)  # one row copied to four places
    assert copied(rows, row * 144 + piece * 16, 16, (LANES < 8)[None]) == (4, 4)
    assert copied(rows, np.where(row == 0, 227 * 1024, 0) + piece * 16, 16)[0] == 16  # largest distance in an SM


def test_sectors_of_local_accesses() -> None:
    def count(address: np.ndarray, size: int) -> tuple[int, int]:
        steps = banks.local_sectors(np.asarray(address).reshape(1, 32), size, ALL)
        return int(steps.needed[0]), int(steps.ideal[0])

    assert count(np.full(32, 8), 4) == (4, 4)
    assert count(np.full(32, 16), 16) == (16, 16)
    assert count(LANES * 4, 4) == (32, 4)  # every lane at another index


def test_wavefronts_against_a_scalar_implementation() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 2, 4, 8, 16):
        address = generator.integers(0, 64, (200, 32)) * size
        active = generator.random((200, 32)) < 0.7
        steps = banks.shared_wavefronts(address, size, active, load=False)
        groups = max(1, size // 4)
        for warp in range(200):
            total = 0
            for lanes in LANES.reshape(groups, -1):
                words = {
                    int(address[warp, lane]) // 4 + extra
                    for lane in lanes
                    if active[warp, lane]
                    for extra in range(max(1, size // 4))
                }
                total += max((sum(word % 32 == bank for word in words) for bank in range(32)), default=0)
            assert steps.needed[warp] == total
