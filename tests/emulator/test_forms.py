"""Less common instructions: extended precision, directed rounding, conversions and tensor types beyond f16."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind

Run = Callable[..., np.ndarray]
HEAD = ".version 8.7\n.target sm_89\n.address_size 64\n.visible .entry k("


def kernel(params: int, registers: str, body: str) -> Emulator:
    declared = ", ".join(f".param .u64 p{number}" for number in range(params))
    return Emulator(f"{HEAD}{declared})\n{{\n{registers}\n{body}\nret;\n}}\n")


def edges(bits: int) -> list[int]:
    top = 1 << bits
    return [
        0,
        1,
        2,
        top - 1,
        top - 2,
        top // 2,
        top // 2 - 1,
        0x123456789ABCDEF & (top - 1),
        0xFEDCBA98765432 & (top - 1),
    ]


# --- carries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("operation", ["add", "sub"])
def test_sums_and_differences_of_three_limbs(bits: int, operation: str) -> None:
    """Sum or difference of three words with carries."""
    values = edges(bits)
    some = np.random.default_rng(0).integers(0, len(values), (64, 6))
    words = np.array([[values[i] for i in row] for row in some], f"u{bits // 8}")
    out = np.zeros((64, 3), words.dtype)
    names = [f"%a{n}" for n in range(6)] + [f"%d{n}" for n in range(3)]
    size = bits // 8
    body = ["mov.u32 %t, %tid.x;", "ld.param.u64 %p, [p0];", "ld.param.u64 %q, [p1];"]
    body += [f"mad.wide.u32 %p, %t, {6 * size}, %p;", f"mad.wide.u32 %q, %t, {3 * size}, %q;"]
    body += [f"ld.global.u{bits} %a{n}, [%p+{n * size}];" for n in range(6)]
    body += [f"{operation}.cc.u{bits} %d0, %a0, %a3;", f"{operation}c.cc.u{bits} %d1, %a1, %a4;"]
    body += [f"{operation}c.u{bits} %d2, %a2, %a5;"]
    body += [f"st.global.u{bits} [%q+{n * size}], %d{n};" for n in range(3)]
    registers = f".reg .b32 %t; .reg .b64 %p, %q; .reg .b{bits} {', '.join(names)};"
    kernel(2, registers, "\n".join(body)).launch(1, 64, [words, out])
    for row, got in zip(words.tolist(), out.tolist(), strict=True):
        left, right = (sum(word << bits * n for n, word in enumerate(part)) for part in (row[:3], row[3:]))
        want = (left + right if operation == "add" else left - right) & ((1 << 3 * bits) - 1)
        assert sum(word << bits * n for n, word in enumerate(got)) == want


def test_a_product_of_two_limbs() -> None:
    """Product of 64 x 64 bits from 32-bit words, as in compiled 64-bit multiplications."""
    values = np.array([(x << 32 | y) & (2**64 - 1) for x in edges(32) for y in edges(32)[:7]] + [0] * 1, np.uint64)
    a, b, out = values, values[::-1].copy(), np.zeros((len(values), 2), np.uint64)
    body = """
      mov.u32 %t, %tid.x; ld.param.u64 %p, [p0]; ld.param.u64 %q, [p1]; ld.param.u64 %o, [p2];
      mad.wide.u32 %p, %t, 8, %p; mad.wide.u32 %q, %t, 8, %q; mad.wide.u32 %o, %t, 16, %o;
      ld.global.v2.u32 {%al, %ah}, [%p]; ld.global.v2.u32 {%bl, %bh}, [%q];
      mul.lo.u32 %r0, %al, %bl;
      mul.hi.u32 %r1, %al, %bl;
      mad.lo.cc.u32 %r1, %al, %bh, %r1;
      madc.hi.u32 %r2, %al, %bh, 0;
      mad.lo.cc.u32 %r1, %ah, %bl, %r1;
      madc.hi.cc.u32 %r2, %ah, %bl, %r2;
      addc.u32 %r3, 0, 0;
      mad.lo.cc.u32 %r2, %ah, %bh, %r2;
      madc.hi.u32 %r3, %ah, %bh, %r3;
      st.global.v4.u32 [%o], {%r0, %r1, %r2, %r3};"""
    registers = ".reg .b32 %t, %al, %ah, %bl, %bh; .reg .b32 %r<4>; .reg .b64 %p, %q, %o;"
    kernel(3, registers, body).launch(1, len(values), [a, b, out])
    for x, y, (low, high) in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
        assert high << 64 | low == x * y


def test_a_carry_from_another_block_is_unsupported() -> None:
    with pytest.raises(EmulatorError) as caught:
        kernel(0, ".reg .b32 %r<2>;", "addc.u32 %r0, %r1, %r1;").check()
    assert caught.value.kind is FaultKind.UNSUPPORTED_INSTRUCTION


# --- directed rounding ------------------------------------------------------------------------------------------------


def directed(exact: Fraction, mode: str) -> np.float32:
    """Exact value rounded to float32 in a direction."""
    near = np.float32(float(exact))
    if Fraction(float(near)) == exact:
        return near
    down = mode == "rm" or (mode == "rz" and exact > 0)
    wrong_side = Fraction(float(near)) > exact if down else Fraction(float(near)) < exact
    return np.nextafter(near, np.float32(-np.inf if down else np.inf)) if wrong_side else near


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "fma", "div", "rcp"])
def test_directed_rounding(run_elementwise: Run, operation: str, mode: str) -> None:
    generator = np.random.default_rng(1)
    scale = np.exp2(generator.integers(-30, 30, (3, 192)))
    a, b, c = (generator.standard_normal((3, 192)) * scale).astype(np.float32)
    exact: dict[str, Callable[[Fraction, Fraction, Fraction], Fraction]] = {
        "add": lambda x, y, _: x + y,
        "sub": lambda x, y, _: x - y,
        "mul": lambda x, y, _: x * y,
        "fma": lambda x, y, z: x * y + z,
        "div": lambda x, y, _: x / y,
        "rcp": lambda x, _, __: 1 / x,
    }
    sources = {"fma": "%a0, %a1, %a2", "rcp": "%a0"}.get(operation, "%a0, %a1")
    got = run_elementwise(f"{operation}.{mode}.f32 %d, {sources};", [a, b, c], np.float32)
    for x, y, z, d in zip(a, b, c, got, strict=True):
        want = directed(exact[operation](*(Fraction(float(v)) for v in (x, y, z))), mode)
        assert d == want, (x, y, z)


@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("f32", np.float32)])
@pytest.mark.parametrize("mode", ["rm", "rp"])
def test_conversions_with_directed_rounding(run_elementwise: Run, kind: str, dtype: type, mode: str) -> None:
    values = 3 * np.random.default_rng(4).standard_normal(128)
    source, a = ("f64", values) if kind == "f32" else ("f32", values.astype(np.float32))
    got = run_elementwise(f"cvt.{mode}.{kind}.{source} %d, %a0;", [a], dtype).astype(np.float64)
    step = np.abs(np.spacing(np.asarray(a.astype(dtype)))).astype(np.float64)
    gap = a.astype(np.float64) - got if mode == "rm" else got - a.astype(np.float64)
    assert ((gap >= 0) & (gap < step)).all()
    assert (gap > 0).any()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_64_bit_integers_with_directed_rounding(run_elementwise: Run, dtype: type, mode: str) -> None:
    rng, info = np.random.default_rng(5), np.iinfo(dtype)
    near = [sign * (2**place + step) for sign in (1, -1) for place in (24, 53, 60, 62) for step in (-1, 0, 1)]
    values: np.ndarray = np.array([value for value in near if value >= info.min] + [info.min, info.max], dtype)
    values = np.concatenate([values, rng.integers(info.min, info.max, 64 - len(values), dtype)])
    kind = f"{'u' if info.min == 0 else 's'}64"
    got = run_elementwise(f"cvt.{mode}.f32.{kind} %d, %a0;", [values], np.float32)
    assert got.tolist() == [float(directed(Fraction(int(value)), mode)) for value in values]
    wide = run_elementwise(f"cvt.{mode}.f64.{kind} %d, %a0;", [values], np.float64)
    for value, found in zip(values.tolist(), wide.tolist(), strict=True):
        above = mode == "rp" or (mode == "rz" and value < 0)
        assert 0 <= (int(found) - value) * (1 if above else -1) < 2048
        assert int(found) == value or value.bit_length() > 53


@pytest.mark.parametrize("half", ["lo", "hi"])
@pytest.mark.parametrize("kinds", ["s32.s32", "u32.s32", "s32.u32"])
def test_dp2a(run_elementwise: Run, half: str, kinds: str) -> None:
    a, b, c = np.random.default_rng(5).integers(0, 1 << 32, (3, 64), dtype=np.uint32)
    got = run_elementwise(f"dp2a.{half}.{kinds} %d, %a0, %a1, %a2;", [a, b, c], np.uint32)
    left = a.view(np.int16 if kinds[0] == "s" else np.uint16).reshape(-1, 2).astype(np.int64)
    right = b.view(np.int8 if kinds[4] == "s" else np.uint8).reshape(-1, 4).astype(np.int64)
    picked = right[:, :2] if half == "lo" else right[:, 2:]
    np.testing.assert_array_equal(got, ((left * picked).sum(axis=1) + c).astype(np.uint32))


# --- tensor types -----------------------------------------------------------------------------------------------------


def fp8(byte: int, mantissa: int, bias: int) -> float:
    """Value of a finite 8-bit float."""
    exponent, fraction = (byte & 0x7F) >> mantissa, byte & ((1 << mantissa) - 1)
    value = (fraction / (1 << mantissa) + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
    return -value if byte & 0x80 else value


@pytest.mark.parametrize(("kind", "mantissa", "bias", "finite"), [("e4m3", 3, 7, 0x7E), ("e5m2", 2, 15, 0x7B)])
def test_conversions_of_8_bit_floats(run_elementwise: Run, kind: str, mantissa: int, bias: int, finite: int) -> None:
    table = np.array([fp8(byte, mantissa, bias) for byte in range(finite + 1)])
    middles = (table[1:] + table[:-1]) / 2
    a = np.concatenate([table, -table, middles, np.nextafter(middles, 0), [1e9, -1e9, np.inf]]).astype(np.float32)
    a = np.resize(a, -(-len(a) // 64) * 64)
    got = run_elementwise(f"cvt.rn.satfinite.{kind}x2.f32 %d, %a0, %a1;", [a, -a], np.uint16)
    for value, pair in zip(a.tolist(), got.tolist(), strict=True):
        distance = np.abs(table - min(abs(value), table[-1]))
        nearest = np.flatnonzero(distance == distance.min())
        code = int(nearest[nearest % 2 == 0][0] if len(nearest) > 1 else nearest[0])
        negative = np.signbit(value)
        assert pair == (code | negative << 7) << 8 | (code | (not negative) << 7), value
    back = run_elementwise(f"cvt.rn.f16x2.{kind}x2 %d, %a0;", [got], np.uint32).view(np.float16).reshape(-1, 2)
    exact = [[fp8(pair & 0xFF, mantissa, bias), fp8(pair >> 8, mantissa, bias)] for pair in got.tolist()]
    np.testing.assert_array_equal(back, np.array(exact, np.float16))


@pytest.mark.parametrize(("kind", "mantissa", "bias", "finite"), [("e4m3", 3, 7, 0x7E), ("e5m2", 2, 15, 0x7B)])
def test_products_of_8_bit_floats(kind: str, mantissa: int, bias: int, finite: int) -> None:
    generator = np.random.default_rng(2)
    a, b = (generator.integers(0, finite + 1, shape, dtype=np.uint8) for shape in ((16, 32), (8, 32)))
    a |= generator.integers(0, 2, a.shape, dtype=np.uint8) << 7
    out = np.zeros((16, 8), np.float32)
    body = f"""
      mov.u32 %t, %tid.x; shr.u32 %g, %t, 2; and.b32 %c, %t, 3;
      ld.param.u64 %p, [p0]; ld.param.u64 %q, [p1]; ld.param.u64 %o, [p2];
      mad.lo.u32 %s, %g, 32, 0; mad.lo.u32 %s, %c, 4, %s; cvt.u64.u32 %w, %s;
      add.u64 %p, %p, %w; add.u64 %q, %q, %w;
      ld.global.u32 %a0, [%p]; ld.global.u32 %a1, [%p+256]; ld.global.u32 %a2, [%p+16]; ld.global.u32 %a3, [%p+272];
      ld.global.u32 %b0, [%q]; ld.global.u32 %b1, [%q+16];
      mov.f32 %z, 0f00000000;
      mma.sync.aligned.m16n8k32.row.col.f32.{kind}.{kind}.f32 {{%d0, %d1, %d2, %d3}}, {{%a0, %a1, %a2, %a3}},
        {{%b0, %b1}}, {{%z, %z, %z, %z}};
      mad.lo.u32 %s, %g, 32, 0; mad.lo.u32 %s, %c, 8, %s; cvt.u64.u32 %w, %s; add.u64 %o, %o, %w;
      st.global.v2.f32 [%o], {{%d0, %d1}}; st.global.v2.f32 [%o+256], {{%d2, %d3}};"""
    registers = (
        ".reg .b32 %t, %g, %c, %s; .reg .b32 %a<4>; .reg .b32 %b<2>; .reg .f32 %d<4>, %z; .reg .b64 %p, %q, %o, %w;"
    )
    kernel(3, registers, body).launch(1, 32, [a, b, out])
    left, right = (np.vectorize(lambda x: fp8(int(x), mantissa, bias))(values) for values in (a, b))
    np.testing.assert_allclose(out, left @ right.T, rtol=1e-6)


def test_a_product_of_doubles() -> None:
    generator = np.random.default_rng(3)
    a, b, out = generator.standard_normal((8, 4)), generator.standard_normal((8, 4)), np.zeros((8, 8))
    body = """
      mov.u32 %t, %tid.x; ld.param.u64 %p, [p0]; ld.param.u64 %q, [p1]; ld.param.u64 %o, [p2];
      mad.wide.u32 %p, %t, 8, %p; mad.wide.u32 %q, %t, 8, %q; mad.wide.u32 %o, %t, 16, %o;
      ld.global.f64 %a, [%p]; ld.global.f64 %b, [%q]; mov.f64 %z, 0d3FF0000000000000;
      mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%c0, %c1}, {%a}, {%b}, {%z, %z};
      st.global.v2.f64 [%o], {%c0, %c1};"""
    registers = ".reg .b32 %t; .reg .f64 %a, %b, %c0, %c1, %z; .reg .b64 %p, %q, %o;"
    kernel(3, registers, body).launch(1, 32, [a, b, out])
    np.testing.assert_allclose(out, a @ b.T + 1, rtol=1e-14)


@pytest.mark.parametrize(("comparison", "test"), [("lt", np.less), ("ge", np.greater_equal), ("ne", np.not_equal)])
def test_comparisons_of_packed_halves(run_elementwise: Run, comparison: str, test: np.ufunc) -> None:
    halves = np.array([0, -0.0, 1, -1, 0.5, 65504, 6e-8, np.inf], np.float16)
    a, b = (v.ravel().reshape(-1, 2).copy() for v in np.meshgrid(np.repeat(halves, 2), np.repeat(halves, 2)[::-1]))
    left, right = (v.view(np.uint32)[:, 0] for v in (a, b))
    want = test(a, b)
    ones = run_elementwise(f"set.{comparison}.f16x2.f16x2 %d, %a0, %a1;", [left, right], np.uint32)
    np.testing.assert_array_equal(ones.view(np.float16).reshape(-1, 2), want)
    masks = run_elementwise(f"set.{comparison}.u32.f16x2 %d, %a0, %a1;", [left, right], np.uint32)
    np.testing.assert_array_equal(masks.view(np.uint16).reshape(-1, 2), np.where(want, 0xFFFF, 0))
    split = f"setp.{comparison}.f16x2 %q0|%q1, %a0, %a1; selp.b32 %x0, 1, 0, %q0; selp.b32 %x1, 2, 0, %q1;"
    both = run_elementwise(f"{split} or.b32 %d, %x0, %x1;", [left, right], np.uint32)
    np.testing.assert_array_equal(both, want[:, 0] + 2 * want[:, 1])


# K, types of D, A, B and C, and modifiers of further products of rows and columns.
PRODUCTS = [
    (16, "f32.e4m3.e5m2.f32", ""),
    (16, "f16.e5m2.e4m3.f16", ""),
    (32, "f16.e4m3.e4m3.f16", ""),
    (32, "f16.e4m3.e5m2.f32", ""),
    (32, "s32.s8.u8.s32", ".satfinite"),
    (16, "s32.u8.u8.s32", ".satfinite"),
]


@pytest.mark.parametrize(("depth", "types", "modifier"), PRODUCTS)
def test_products_of_8_bit_elements(depth: int, types: str, modifier: str) -> None:
    result, left, right, addend = types.split(".")
    generator = np.random.default_rng(4)
    a, b = (generator.integers(0, 256, shape, dtype=np.uint8) for shape in ((16, depth), (8, depth)))
    if left in ("e4m3", "e5m2"):  # small numbers, so that sums fit into f16
        a, b = (raw & np.uint8(0xB7) for raw in (a, b))
    layouts = {"s8": np.int8, "u8": np.uint8}
    formats = {"e4m3": (3, 7), "e5m2": (2, 15)}
    values = [
        raw.view(layouts[kind]).astype(np.int64)
        if kind in layouts
        else np.array([fp8(int(x), *formats[kind]) for x in raw.ravel()]).reshape(raw.shape)
        for raw, kind in ((a, left), (b, right))
    ]
    dtypes = {"f16": np.float16, "f32": np.float32, "s32": np.int32}
    c = generator.integers(-9, 9, (16, 8)).astype(dtypes[addend])
    if result == "s32":
        c[:8] += 2**31 - 9
        c[8:] -= 2**31 - 9
    out, counts = np.zeros((16, 8), dtypes[result]), [1 if kind == "f16" else 2 for kind in (result, addend)]
    a_registers = [f"%a{number}" for number in range(depth // 8)]
    loads = [f"ld.global.u32 %a{2 * i + j}, [%p+{16 * i + 8 * j * depth}];" for i in range(depth // 16) for j in (0, 1)]
    loads += [f"ld.global.u32 %b{i}, [%q+{16 * i}];" for i in range(depth // 16)]
    d = [f"%d{i}" for i in range(2 * counts[0])]
    addends = [f"%c{i}" for i in range(2 * counts[1])]
    loads += [
        f"ld.global.b32 %c{row * counts[1] + i}, [%r+{row * 128 * counts[1] + 4 * i}];"
        for row in (0, 1)
        for i in range(counts[1])
    ]
    stores = [
        f"st.global.b32 [%o+{row * 128 * counts[0] + 4 * i}], %d{row * counts[0] + i};"
        for row in (0, 1)
        for i in range(counts[0])
    ]
    body = f"""
      mov.u32 %t, %tid.x; shr.u32 %g, %t, 2; and.b32 %e, %t, 3;
      ld.param.u64 %p, [p0]; ld.param.u64 %q, [p1]; ld.param.u64 %r, [p2]; ld.param.u64 %o, [p3];
      mad.lo.u32 %s, %g, {depth}, 0; mad.lo.u32 %s, %e, 4, %s; cvt.u64.u32 %w, %s;
      add.u64 %p, %p, %w; add.u64 %q, %q, %w;
      mad.lo.u32 %s, %g, {16 * counts[1]}, 0; mad.lo.u32 %s, %e, {4 * counts[1]}, %s; cvt.u64.u32 %w, %s;
      add.u64 %r, %r, %w;
      mad.lo.u32 %s, %g, {16 * counts[0]}, 0; mad.lo.u32 %s, %e, {4 * counts[0]}, %s; cvt.u64.u32 %w, %s;
      add.u64 %o, %o, %w;
      {" ".join(loads)}
      mma.sync.aligned.m16n8k{depth}.row.col{modifier}.{types} {{{", ".join(d)}}}, {{{", ".join(a_registers)}}},
        {{{", ".join(f"%b{i}" for i in range(depth // 16))}}}, {{{", ".join(addends)}}};
      {" ".join(stores)}"""
    registers = ".reg .b32 %t, %g, %e, %s, %a<4>, %b<2>, %c<4>, %d<4>; .reg .b64 %p, %q, %r, %o, %w;"
    kernel(4, registers, body).launch(1, 32, [a, b, c, out])
    want = values[0] @ values[1].T + c.astype(np.float64 if result != "s32" else np.int64)
    if result == "s32":
        np.testing.assert_array_equal(out, np.clip(want, -(2**31), 2**31 - 1))
    else:
        np.testing.assert_allclose(out, want, rtol=1e-3 if result == "f16" else 1e-5, atol=1e-2)
