"""Parsing of PTX: comments, scopes that shadow names, labels, several statements on a line, malformed text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory
from evoengine.emulator.ptx.parser import parse

HEAD = ".version 9.0\n.target sm_89\n.address_size 64\n"


def test_scopes_shadow_names_and_comments_are_ignored() -> None:
    ptx = (
        HEAD
        + """
.global .align 4 .b32 table[3] = {5, 0x10, -1}; /* a comment
over two lines { with a brace */
.visible .entry k(
    .param .align 8 .b8 s[12], // a struct
    .param .u64 .ptr .global .align 4 out
)
.maxntid 32, 1, 1
{
    .reg .b32 r, %r<4>; .reg .b64 a, o;
    mov.u32 r, 1; { .reg .b32 r; mov.u32 r, 100;
      { .reg .b32 r; mov.u32 r, 1000; add.s32 %r1, r, 0; } add.s32 %r1, %r1, r; } add.s32 %r1, %r1, r;
    { .reg .b32 %r<2>; .shared .align 4 .b32 table[2]; mov.u32 %r1, 77; st.shared.u32 [table+4], %r1; }
    ld.global.u32 %r2, [table+4]; add.s32 %r1, %r1, %r2;
    ld.param.u32 %r2, [s+8]; add.s32 %r1, %r1, %r2;
    ld.param.u64 a, [out]; mov.u32 %r3, %tid.x; mul.wide.u32 o, %r3, 4; add.s64 a, a, o;
    bra.uni L2; L1: st.global.u32 [a], %r1; ret;
L2: bra L1;
;
}
"""
    )
    memory = GlobalMemory()
    out = memory.alloc(128)
    struct = np.array([0, 0, 20000], np.int32)
    Emulator(ptx).launch(1, 32, [struct.tobytes(), out], memory=memory)
    np.testing.assert_array_equal(memory.read(out, np.int32), 1000 + 100 + 1 + 16 + 20000)


def test_labels_of_scopes_beside_each_other_are_apart_and_constants_have_values() -> None:
    loops = """
    { .reg .pred p; AGAIN: add.s32 %r0, %r0, 1; setp.ge.s32 p, %r0, 5; @p bra DONE; bra AGAIN; DONE: }
    { .reg .pred p; AGAIN: add.s32 %r0, %r0, 10; setp.ge.s32 p, %r0, 50; @p bra DONE; bra AGAIN; DONE: }
    { .reg .b32 i; mov.u32 i, 1; brx.idx i, TABLE; TABLE: .branchtargets AGAIN, DONE; AGAIN: trap; DONE: }
    { .reg .b32 i; mov.u32 i, 0; brx.idx i, TABLE; TABLE: .branchtargets DONE, AGAIN; AGAIN: trap; DONE: }"""
    body = f".reg .b32 %r<1>; .reg .b64 a; mov.u32 %r0, 0; {loops} sub.s32 %r0, %r0, WARP_SZ;"
    body += "ld.param.u64 a, [o]; st.global.u32 [a], %r0; ret;"
    memory = GlobalMemory()
    out = memory.alloc(4)
    Emulator(HEAD + f".entry k(.param .u64 o) {{ {body} }}").launch(1, 1, [out], memory=memory)
    np.testing.assert_array_equal(memory.read(out, np.int32), 55 - 32)


def test_parameters_are_placed_by_alignment() -> None:
    entry = parse(HEAD + ".entry k(.param .u8 a, .param .u64 b, .param .align 16 .b8 c[20], .param .f32 d) { ret; }")
    assert [(p.offset, p.size) for p in entry.params] == [(0, 1), (8, 8), (16, 20), (36, 4)]


def test_selection_of_the_entry() -> None:
    two = HEAD + ".entry a() { ret; }\n.entry b() { trap; }\n"
    Emulator(two, entry="a").launch(1, 32, [], memory=GlobalMemory())
    with pytest.raises(EmulatorError, match="a, b"):
        Emulator(two)
    with pytest.raises(EmulatorError, match="no entry 'c'"):
        Emulator(two, entry="c")


@pytest.mark.parametrize(
    "body",
    [
        "mov.u32 %r, ;",
        "{ ret;",
        "[what] ret;",
        ".frob x; ret;",
        "mov.u32 %r, 010; ret;",
        ".loc 1 2 3 ret; ret;",
        "L: { L: } ret;",
        "{ { L: } L: } ret;",
        "bra L; { L: ret; }",
        "{ bra M; L: ret; M: } { bra L; } ret;",
        "ld.global.u32 %r, [table+4*2]; ret;",
        ".reg .b32 %q<x>; ret;",
        ".param .texref t; ret;",
    ],
)
def test_malformed_text_is_reported(body: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        Emulator(HEAD + ".entry k() {\n.reg .b32 %r;\n" + body + "\n}\n").launch(1, 32, [], memory=GlobalMemory())
    assert caught.value.kind in (FaultKind.MALFORMED_PTX, FaultKind.UNSUPPORTED_INSTRUCTION)


@pytest.mark.parametrize(
    "entry",
    [
        ".entry k()",
        ".entry k() {}",
        ".entry k(.param .texref t) { ret; }",
        ".entry k(.param .align 0 .b32 t) { ret; }",
        ".func f(.param .texref t) { ret; } .entry k() { ret; }",
    ],
)
def test_malformed_declarations_are_reported(entry: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        Emulator(HEAD + entry)
    assert (caught.value.kind, caught.value.fault.ptx_line) == (FaultKind.MALFORMED_PTX, 4)


def test_every_block_of_a_compiled_kernel_translates(compile_cuda: Callable[..., str]) -> None:
    source = """extern "C" __global__ void f(float* x, int n) {
      if (n > 100) { for (int i = 0; i < n; i++) x[i] = x[i] * 2 + i % 7; } else x[0] = sqrtf(x[1]) / (float)n; }"""
    for arch in ("sm_80", "sm_89", "sm_90"):
        Emulator(compile_cuda(source, arch=arch)).check()


def test_registers_of_128_bits_are_refused() -> None:
    with pytest.raises(EmulatorError, match="registers of 128 bits"):
        Emulator(HEAD + ".entry k() { .reg .b128 %x; ret; }")
