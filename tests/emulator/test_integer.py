"""Integer instructions against Python's exact integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

Run = Callable[..., np.ndarray]
EDGES32 = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    100,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0x12345678,
    0xDEADBEEF,
]


def pairs(dtype: type, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edge values."""
    edges = np.array(EDGES32, np.uint64)
    if np.dtype(dtype).itemsize == 8:
        edges = np.concatenate([edges, edges << np.uint64(32) | edges[::-1]])[:32:2]
    edges = edges.astype(dtype)
    a, b = np.meshgrid(edges, edges)
    return a.ravel().copy(), b.ravel().copy()


def wrapped(values: list[int], dtype: type) -> np.ndarray:
    """Python integers modulo the width of a dtype."""
    bits = np.dtype(dtype).itemsize * 8
    return np.array([v & ((1 << bits) - 1) for v in values], f"u{bits // 8}").view(dtype)


def c_div(a: int, b: int) -> int:
    """Division as in C, which truncates toward zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


TYPES = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("opcode", "reference"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul.lo", lambda a, b: a * b),
        ("min", min),
        ("max", max),
    ],
)
def test_arithmetic(run_elementwise: Run, kind: str, opcode: str, reference: Callable[[int, int], int]) -> None:
    a, b = pairs(TYPES[kind])
    got = run_elementwise(f"{opcode}.{kind} %d, %a0, %a1;", [a, b], TYPES[kind])
    np.testing.assert_array_equal(
        got, wrapped([reference(int(x), int(y)) for x, y in zip(a, b, strict=True)], TYPES[kind])
    )


@pytest.mark.parametrize("kind", TYPES)
def test_mul_hi(run_elementwise: Run, kind: str) -> None:
    a, b = pairs(TYPES[kind])
    bits = int(kind[1:])
    got = run_elementwise(f"mul.hi.{kind} %d, %a0, %a1;", [a, b], TYPES[kind])
    np.testing.assert_array_equal(
        got, wrapped([int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)], TYPES[kind])
    )


@pytest.mark.parametrize("kind", TYPES)
def test_division_truncates(run_elementwise: Run, kind: str) -> None:
    a, b = pairs(TYPES[kind])
    b[b == 0] = 5
    got = run_elementwise(f"div.{kind} %d, %a0, %a1;", [a, b], TYPES[kind])
    np.testing.assert_array_equal(got, wrapped([c_div(int(x), int(y)) for x, y in zip(a, b, strict=True)], TYPES[kind]))
    rest = run_elementwise(f"rem.{kind} %d, %a0, %a1;", [a, b], TYPES[kind])
    want = [int(x) - c_div(int(x), int(y)) * int(y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(rest, wrapped(want, TYPES[kind]))


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_wide_products(run_elementwise: Run, kind: str) -> None:
    a, b = pairs(TYPES[kind])
    wide = np.int64 if kind == "s32" else np.uint64
    got = run_elementwise(f"mul.wide.{kind} %d, %a0, %a1;", [a, b], wide)
    np.testing.assert_array_equal(got, wrapped([int(x) * int(y) for x, y in zip(a, b, strict=True)], wide))


@pytest.mark.parametrize("kind", TYPES)
def test_shifts_clamp(run_elementwise: Run, kind: str) -> None:
    a, _ = pairs(TYPES[kind])
    bits = int(kind[1:])
    counts = np.tile(
        np.array([0, 1, 5, 31, 32, 33, 63, 64, 65, 200, 255, 256, 1 << 20, 0x80000000, 0xFFFFFFFF, 16], np.uint32), 16
    )
    left = run_elementwise(f"shl.b{bits} %d, %a0, %a1;", [a, counts], TYPES[kind])
    np.testing.assert_array_equal(
        left, wrapped([int(x) << min(int(c), bits) for x, c in zip(a, counts, strict=True)], TYPES[kind])
    )
    right = run_elementwise(f"shr.{kind} %d, %a0, %a1;", [a, counts], TYPES[kind])
    want = [int(x) >> min(int(c), bits) for x, c in zip(a, counts, strict=True)]
    np.testing.assert_array_equal(right, wrapped(want, TYPES[kind]))
    literal = run_elementwise(f"shr.{kind} %d, %a0, 3;", [a], TYPES[kind])
    np.testing.assert_array_equal(literal, wrapped([int(x) >> 3 for x in a], TYPES[kind]))


def test_lop3_supports_every_table(run_elementwise: Run) -> None:
    a, b = pairs(np.uint32)
    c = np.random.default_rng(1).integers(0, 1 << 32, a.size, dtype=np.uint32)
    for table in range(256):
        got = run_elementwise(f"lop3.b32 %d, %a0, %a1, %a2, {table};", [a[:64], b[:64], c[:64]], np.uint32)
        want = np.zeros(64, np.uint32)
        for bit in range(32):
            index = (a[:64] >> bit & 1) << 2 | (b[:64] >> bit & 1) << 1 | (c[:64] >> bit & 1)
            want |= ((np.uint32(table) >> index) & 1) << np.uint32(bit)
        np.testing.assert_array_equal(got, want, err_msg=f"table {table:#x}")


def test_prmt_default_mode(run_elementwise: Run) -> None:
    generator = np.random.default_rng(2)
    a, b = (generator.integers(0, 1 << 32, 256, dtype=np.uint32) for _ in range(2))
    selector = generator.integers(0, 1 << 16, 256, dtype=np.uint32)
    got = run_elementwise("prmt.b32 %d, %a0, %a1, %a2;", [a, b, selector], np.uint32)
    for x, y, s, d in zip(a, b, selector, got, strict=True):
        source = (int(y) << 32 | int(x)).to_bytes(8, "little")
        want = []
        for byte in range(4):
            nibble = int(s) >> 4 * byte & 15
            value = source[nibble & 7]
            want.append((0xFF if value & 0x80 else 0) if nibble & 8 else value)
        assert int(d) == int.from_bytes(bytes(want), "little")


@pytest.mark.parametrize(
    ("mode", "orders"),
    [
        ("f4e", [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]),
        ("b4e", [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]]),
        ("rc8", [[0] * 4, [1] * 4, [2] * 4, [3] * 4]),
        ("ecl", [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
        ("rc16", [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]]),
    ],
)
def test_prmt_modes(run_elementwise: Run, mode: str, orders: list[list[int]]) -> None:
    a = np.full(64, 0x33221100, np.uint32)
    b = np.full(64, 0x77665544, np.uint32)
    selector = np.tile(np.arange(4, dtype=np.uint32), 16)
    got = run_elementwise(f"prmt.b32.{mode} %d, %a0, %a1, %a2;", [a, b, selector], np.uint32)
    for s in range(4):
        assert got[s].tobytes() == bytes(0x11 * n for n in orders[s])


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_bit_fields(run_elementwise: Run, kind: str) -> None:
    generator = np.random.default_rng(3)
    a = generator.integers(0, 1 << 32, 512, dtype=np.uint32).view(TYPES[kind])
    start = generator.integers(0, 40, 512, dtype=np.uint32)
    length = generator.integers(0, 40, 512, dtype=np.uint32)
    got = run_elementwise(f"bfe.{kind} %d, %a0, %a1, %a2;", [a, start, length], TYPES[kind])
    for x, s, n, d in zip(a, start.tolist(), length.tolist(), got, strict=True):
        bits = int(x) & 0xFFFFFFFF
        msb = min(s + n - 1, 31)
        sign = (bits >> msb & 1) if kind == "s32" and n else 0
        want = sum((bits >> (s + i) & 1 if i < n and s + i <= 31 else sign) << i for i in range(32))
        assert int(d) & 0xFFFFFFFF == want, (hex(bits), s, n)


def test_bfi(run_elementwise: Run) -> None:
    generator = np.random.default_rng(4)
    a, b = (generator.integers(0, 1 << 32, 512, dtype=np.uint32) for _ in range(2))
    start, length = (generator.integers(0, 40, 512, dtype=np.uint32) for _ in range(2))
    code = "mov.b32 %x0, %a2; mov.b32 %x1, %a3; bfi.b32 %d, %a0, %a1, %x0, %x1;"
    got = run_elementwise(code, [a, b, start, length], np.uint32)
    for x, y, s, n, d in zip(a.tolist(), b.tolist(), start.tolist(), length.tolist(), got.tolist(), strict=True):
        want = y
        for i in range(n):
            if s + i <= 31:
                want = want & ~(1 << (s + i)) | (x >> i & 1 if i < 32 else 0) << (s + i)
        assert d == want


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk(run_elementwise: Run, mode: str) -> None:
    start, length = pairs(np.uint32, 3)
    got = run_elementwise(f"bmsk.{mode}.b32 %d, %a0, %a1;", [start, length], np.uint32)
    for s, n, d in zip(start.tolist(), length.tolist(), got.tolist(), strict=True):
        first, count = (s, n) if mode == "clamp" else (s % 32, n % 32)
        assert d == sum(1 << bit for bit in range(first, min(first + count, 32))), (s, n)


def test_counts(run_elementwise: Run) -> None:
    a, _ = pairs(np.uint32)
    np.testing.assert_array_equal(run_elementwise("popc.b32 %d, %a0;", [a], np.uint32), [int(x).bit_count() for x in a])
    np.testing.assert_array_equal(
        run_elementwise("clz.b32 %d, %a0;", [a], np.uint32), [32 - int(x).bit_length() for x in a]
    )
    np.testing.assert_array_equal(
        run_elementwise("brev.b32 %d, %a0;", [a], np.uint32), [int(f"{int(x):032b}"[::-1], 2) for x in a]
    )
    np.testing.assert_array_equal(
        run_elementwise("bfind.u32 %d, %a0;", [a], np.uint32), [(int(x).bit_length() - 1) & 0xFFFFFFFF for x in a]
    )


@pytest.mark.parametrize("direction", ["l", "r"])
@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shift(run_elementwise: Run, direction: str, mode: str) -> None:
    a, b = pairs(np.uint32)
    counts = np.tile(np.array([0, 1, 8, 31, 32, 33, 40, 100], np.uint32), 32)
    got = run_elementwise(f"shf.{direction}.{mode}.b32 %d, %a0, %a1, %a2;", [a, b, counts], np.uint32)
    for low, high, c, d in zip(a.tolist(), b.tolist(), counts.tolist(), got.tolist(), strict=True):
        n = c & 31 if mode == "wrap" else min(c, 32)
        both = high << 32 | low
        assert d == ((both << n) >> 32 & 0xFFFFFFFF if direction == "l" else both >> n & 0xFFFFFFFF)


def test_sub_word_conversions(run_elementwise: Run) -> None:
    a, _ = pairs(np.uint32)
    np.testing.assert_array_equal(
        run_elementwise("cvt.s32.s8 %d, %a0;", [a], np.int32), a.astype(np.uint8).view(np.int8).astype(np.int32)
    )
    np.testing.assert_array_equal(run_elementwise("cvt.u32.u16 %d, %a0;", [a], np.uint32), a & 0xFFFF)
    np.testing.assert_array_equal(
        run_elementwise("cvt.s64.s32 %d, %a0;", [a], np.int64), a.view(np.int32).astype(np.int64)
    )
    np.testing.assert_array_equal(
        run_elementwise("cvt.sat.u8.s32 %d, %a0;", [a.view(np.int32)], np.uint32), np.clip(a.view(np.int32), 0, 255)
    )


def test_select_compare_predicates(run_elementwise: Run) -> None:
    a, b = pairs(np.int32)
    code = """setp.lt.s32 %q0, %a0, %a1; setp.eq.or.s32 %q1|%q2, %a0, 3, %q0; selp.b32 %x0, 1, 0, %q1;
      @%q2 add.s32 %x0, %x0, 2; mov.b32 %d, %x0;"""
    got = run_elementwise(code, [a, b], np.int32)
    first = (a == 3) | (a < b)
    second = (a != 3) | (a < b)
    np.testing.assert_array_equal(got, first + 2 * second)


def test_dp4a_and_sad(run_elementwise: Run) -> None:
    a, b = pairs(np.int32)
    got = run_elementwise("dp4a.s32.s32 %d, %a0, %a1, 7;", [a, b], np.int32)
    bytes_a, bytes_b = (v.view(np.int8).reshape(-1, 4).astype(np.int64) for v in (a, b))
    np.testing.assert_array_equal(got, (bytes_a * bytes_b).sum(1) + 7)
    np.testing.assert_array_equal(
        run_elementwise("sad.u32 %d, %a0, %a1, 1;", [a.view(np.uint32), b.view(np.uint32)], np.uint32),
        wrapped(
            [abs(int(x) - int(y)) + 1 for x, y in zip(a.view(np.uint32), b.view(np.uint32), strict=True)], np.uint32
        ),
    )


def test_mul24(run_elementwise: Run) -> None:
    a, b = pairs(np.int32)
    got = run_elementwise("mad24.lo.s32 %d, %a0, %a1, 5;", [a, b], np.int32)

    def low24(x: int) -> int:
        return ((x & 0xFFFFFF) ^ 0x800000) - 0x800000

    want = [low24(int(x)) * low24(int(y)) + 5 for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got, wrapped(want, np.int32))
