"""The screen of PTX: each rule on kernels of some lines, written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.emulator.screen.records import Access, PointerField, Rule, Signature
from evoengine.emulator.screen.screen import screen_ptx

SIGNATURE = Signature(
    entries=("kernel",),
    argument_bytes=48,
    pointers=(
        PointerField("q", 0, Access.READ),
        PointerField("o", 8, Access.WRITE),
        PointerField("work", 16, Access.READ | Access.WRITE),
        PointerField("counters", 24, Access.ATOMIC, indexes=True),
        PointerField("offsets", 32, Access.READ, indexes=True),
    ),
    maps=(Access.READ, Access.WRITE),
)
HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
START = """
.visible .entry kernel(
	.param .align 8 .b8 kernel_param_0[48],
	.param .align 128 .b8 kernel_param_1[256]
)
.maxntid 32, 1, 1
{
	.reg .pred %p<9>;
	.reg .b32 %r<20>;
	.reg .f32 %f<9>;
	.reg .b64 %rd<20>;
	ld.param.u64 %rd0, [kernel_param_0];
	ld.param.u64 %rd1, [kernel_param_0+8];
	ld.param.u64 %rd2, [kernel_param_0+16];
	ld.param.u64 %rd3, [kernel_param_0+24];
	ld.param.u64 %rd4, [kernel_param_0+32];
	ld.param.u32 %r0, [kernel_param_0+40];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd5, %r1, 4;
	cvta.to.global.u64 %rd6, %rd0;
"""
COPY = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
END = "\tret;\n}\n"


def module(body: str, before: str = ".extern .shared .align 16 .b8 smem[];\n", after: str = "") -> str:
    return HEAD + before + START + body + "\n" + END + after


def rules(ptx: str, signature: Signature = SIGNATURE) -> set[Rule]:
    return {finding.rule for finding in screen_ptx(ptx, signature)}


LOAD = "wmma.load.a.sync.aligned.row.m16n16k16.bf16 {%r4, %r5, %r6, %r7}"
"""The one instruction with a generic address that NVRTC writes for the templates."""

ALLOWED = {
    "matrices by a generic address": "mov.u64 %rd7, smem; cvta.shared.u64 %rd8, %rd7; add.s64 %rd9, %rd8, %rd5;"
    f"{LOAD}, [%rd9+32], %r1;",
    "a load of an input": "add.s64 %rd7, %rd6, %rd5; ld.global.nc.u32 %r2, [%rd7+4];",
    "an index from an argument": "mad.wide.u32 %rd7, %r0, 8, %rd0; ld.global.u32 %r2, [%rd7];",
    "a store to the output": "add.s64 %rd7, %rd5, %rd1; st.global.v2.u32 [%rd7], {%r0, %r1};",
    "partial results": "st.global.f32 [%rd2], 0f00000000; ld.global.cg.f32 %f0, [%rd2+8];",
    "a ticket": "atom.acq_rel.gpu.global.inc.u32 %r2, [%rd3], 7; mul.wide.u32 %rd7, %r2, 4; add.s64 %rd7, %rd7, %rd0;"
    "ld.global.u32 %r3, [%rd7];",
    "offsets of packed sequences": "ld.global.u32 %r2, [%rd4]; mul.wide.u32 %rd7, %r2, 4; add.s64 %rd8, %rd6, %rd7;"
    "ld.global.u32 %r3, [%rd8];",
    "one of two inputs": "setp.gt.u32 %p0, %r0, 3; selp.b64 %rd7, %rd0, %rd4, %p0; ld.global.u32 %r2, [%rd7];",
    "swizzled shared memory": "mov.u32 %r2, smem; shl.b32 %r3, %r1, 4; xor.b32 %r4, %r2, %r3;ld.shared.u32 %r5, [%r4];",
    "a tensor map": "mov.u32 %r2, smem; mov.b64 %rd7, kernel_param_1; cvta.param.u64 %rd8, %rd7; add.s64 %rd9, %rd8, 0;"
    f"{COPY} [%r2], [%rd9, {{%r0, %r1}}], [%r2];",
    "a register used twice": "ld.global.u32 %r2, [%rd0]; mov.u32 %r2, 3; mul.wide.u32 %rd7, %r2, 4;"
    "add.s64 %rd8, %rd6, %rd7; ld.global.u32 %r3, [%rd8];",
    "a value on one path only": "setp.gt.u32 %p0, %r0, 3;\n@%p0 ld.global.u32 %r2, [%rd0];\n"
    "@%p0 st.global.u32 [%rd1], %r2;",
    "half of a pair": "mov.b64 %rd7, {%r0, %r9}; cvt.u32.u64 %r2, %rd7; st.global.u32 [%rd1], %r2;",
    "a pointer on one path only": "setp.gt.u32 %p0, %r0, 3;\n@%p0 mov.u64 %rd7, %rd0;\n@%p0 ld.global.u32 %r2, [%rd7];",
    "one of two inputs by guards": "setp.gt.u32 %p0, %r0, 3;\n@%p0 mov.u64 %rd7, %rd0;\n@!%p0 mov.u64 %rd7, %rd4;\n"
    "ld.global.u32 %r2, [%rd7];",
    "elements that nothing reads": '\n.pragma "used_bytes_mask 15";\nld.global.v2.u32 {%r2, %r3}, [%rd0];\n'
    "st.global.u32 [%rd1], %r2;",
    "names of an inner scope": "{ .reg .b32 low; mov.u32 low, %r0; st.global.u32 [%rd1], low; }",
    "source locations": "\n.loc 1 2 3\nmov.u32 %r2, 1;\n.loc\t1 5 7, function_name $L__x+4, inlined_at 1 2 3\n"
    "mov.u32 %r3, 1;",
    "a hint to the scheduler": "mov.u32 %r2, 20; nanosleep.u32 %r2;",
}

REFUSED = {
    "an output is read": (Rule.ACCESS, "ld.global.u32 %r2, [%rd1];"),
    "an input is written": (Rule.ACCESS, "st.global.u32 [%rd0], %r0;"),
    "an atomic on the workspace": (Rule.ACCESS, "atom.global.add.u32 %r2, [%rd2], 1;"),
    "an input by cp.async from the output": (
        Rule.ACCESS,
        "mov.u32 %r2, smem; cp.async.cg.shared.global [%r2], [%rd1], 16;",
    ),
    "one of an input and the output": (
        Rule.ACCESS,
        "setp.gt.u32 %p0, %r0, 3; selp.b64 %rd7, %rd0, %rd1, %p0; ld.global.u32 %r2, [%rd7];",
    ),
    "a pointer that a guard may replace": (
        Rule.ACCESS,
        "mov.u64 %rd7, %rd1; setp.gt.u32 %p0, %r0, 3;\n@%p0 mov.u64 %rd7, %rd0;\nld.global.u32 %r2, [%rd7];",
    ),
    "a pointer that a loop replaces": (
        Rule.ACCESS,
        (
            "mov.u64 %rd7, %rd0;\n$L1:\nld.global.u32 %r2, [%rd7];\nmov.u64 %rd7, %rd1;\n"
            "setp.gt.u32 %p0, %r0, 3;\n@%p0 bra $L1;"
        ),
    ),
    "the map of the output": (
        Rule.ACCESS,
        (
            "mov.u32 %r2, smem; mov.b64 %rd7, kernel_param_1; add.s64 %rd7, %rd7, 128;"
            f"{COPY} [%r2], [%rd7, {{%r0, %r1}}], [%r2];"
        ),
    ),
    "a computed map": (
        Rule.ADDRESS,
        (
            "mov.u32 %r2, smem; mov.b64 %rd7, kernel_param_1; add.s64 %rd7, %rd7, %rd5;"
            f"{COPY} [%r2], [%rd7, {{%r0, %r1}}], [%r2];"
        ),
    ),
    "a map that is no argument": (
        Rule.ADDRESS,
        (f"mov.u32 %r2, smem;{COPY} [%r2], [%rd0, {{%r0, %r1}}], [%r2];"),
    ),
    "matrices of an input by a generic address": (Rule.ADDRESS, f"{LOAD}, [%rd0], %r1;"),
    "matrices by a generic address from nowhere": (Rule.ADDRESS, f"mov.u64 %rd7, 4096; {LOAD}, [%rd7], %r1;"),
    "a generic address on one path only": (
        Rule.ADDRESS,
        (
            "mov.u64 %rd7, smem; cvta.shared.u64 %rd8, %rd7; setp.gt.u32 %p0, %r0, 3; selp.b64 %rd9, %rd8, %rd5, %p0;"
            f"{LOAD}, [%rd9], %r1;"
        ),
    ),
    "a generic address of a number on one path": (
        Rule.ADDRESS,
        (
            "mov.u64 %rd7, smem; setp.gt.u32 %p0, %r0, 3; selp.b64 %rd8, %rd7, %rd5, %p0; cvta.shared.u64 %rd9, %rd8;"
            f"{LOAD}, [%rd9], %r1;"
        ),
    ),
    "a generic address from a difference": (
        Rule.ADDRESS,
        (
            "mov.u64 %rd7, smem; sub.s64 %rd8, %rd7, %rd7; add.s64 %rd8, %rd8, %rd5; cvta.shared.u64 %rd9, %rd8;"
            f"{LOAD}, [%rd9], %r1;"
        ),
    ),
    "a difference of generic addresses": (
        Rule.ADDRESS,
        (
            "mov.u64 %rd7, smem; cvta.shared.u64 %rd8, %rd7; sub.s64 %rd9, %rd8, %rd8; add.s64 %rd9, %rd9, %rd5;"
            f"{LOAD}, [%rd9], %r1;"
        ),
    ),
    "contents in a generic address": (
        Rule.ADDRESS,
        (
            "mov.u64 %rd7, smem; cvta.shared.u64 %rd8, %rd7; ld.global.u64 %rd9, [%rd0]; add.s64 %rd9, %rd8, %rd9;"
            f"{LOAD}, [%rd9], %r1;"
        ),
    ),
    "an address from nowhere": (Rule.ADDRESS, "mov.u64 %rd7, 4096; ld.global.u32 %r2, [%rd7];"),
    "a literal address": (Rule.ADDRESS, "ld.global.u32 %r2, [4096];"),
    "a sum of pointers": (Rule.ADDRESS, "add.s64 %rd7, %rd0, %rd1; ld.global.u32 %r2, [%rd7];"),
    "bits of a pointer": (Rule.ADDRESS, "and.b64 %rd7, %rd0, -4096; ld.global.u32 %r2, [%rd7];"),
    "a pointer from two words": (
        Rule.ADDRESS,
        "ld.param.v2.u32 {%r2, %r3}, [kernel_param_0]; mov.b64 %rd7, {%r2, %r3}; ld.global.u32 %r4, [%rd7];",
    ),
    "a pointer from shared memory": (
        Rule.ADDRESS,
        "mov.u32 %r2, smem; ld.shared.u64 %rd7, [%r2]; ld.global.u32 %r3, [%rd7];",
    ),
    "constant memory without a variable": (Rule.ADDRESS, "cvt.u64.u32 %rd7, %r0; ld.const.u32 %r2, [%rd7];"),
    "local memory without a variable": (Rule.ADDRESS, "cvt.u64.u32 %rd7, %r0; ld.local.u32 %r2, [%rd7];"),
    "shared memory by a pointer": (Rule.ADDRESS, "cvt.u32.u64 %r2, %rd0; ld.shared.u32 %r3, [%r2];"),
    "an argument by a computed address": (
        Rule.ADDRESS,
        "mov.b64 %rd7, kernel_param_0; add.s64 %rd7, %rd7, %rd5; ld.param.u64 %rd8, [%rd7]; ld.global.u32 %r2, [%rd8];",
    ),
    "contents as an index": (
        Rule.DATA,
        "ld.global.u32 %r2, [%rd0]; mul.wide.u32 %rd7, %r2, 4; add.s64 %rd8, %rd6, %rd7; ld.global.u32 %r3, [%rd8];",
    ),
    "contents through shared memory": (
        Rule.DATA,
        (
            "mov.u32 %r2, smem; ld.shared.u32 %r3, [%r2]; mul.wide.u32 %rd7, %r3, 4; add.s64 %rd8, %rd6, %rd7;"
            "ld.global.u32 %r4, [%rd8];"
        ),
    ),
    "a literal instead of a pointer": (
        Rule.ADDRESS,
        "setp.gt.u32 %p0, %r0, 3; selp.b64 %rd7, %rd0, 4096, %p0; ld.global.u32 %r2, [%rd7];",
    ),
    "a literal under a guard": (
        Rule.ADDRESS,
        "mov.u64 %rd7, %rd0; setp.gt.u32 %p0, %r0, 3;\n@%p0 mov.u64 %rd7, 4096;\nld.global.u32 %r2, [%rd7];",
    ),
    "a pointer under a guard instead of a number": (
        Rule.ADDRESS,
        "mov.u64 %rd7, 4096; setp.gt.u32 %p0, %r0, 3;\n@%p0 mov.u64 %rd7, %rd0;\nld.global.u32 %r2, [%rd7];",
    ),
    "a literal on one path": (
        Rule.ADDRESS,
        (
            "mov.u64 %rd7, %rd0; setp.gt.u32 %p0, %r0, 3;\n@%p0 bra $L1;\nmov.u64 %rd7, 4096;\n$L1:\n"
            "ld.global.u32 %r2, [%rd7];"
        ),
    ),
    "a literal after a turn of a loop": (
        Rule.ADDRESS,
        "mov.u64 %rd7, %rd0;\n$L1:\nld.global.u32 %r2, [%rd7];\nmov.u64 %rd7, 4096;\nbra $L1;",
    ),
    "code that no path reaches": (Rule.ADDRESS, "bra $L1;\nld.global.u32 %r2, [4096];\n$L1:\n"),
    "memory behind the arguments": (Rule.ADDRESS, "ld.param.u32 %r2, [kernel_param_0+48];"),
    "memory before the arguments": (Rule.ADDRESS, "ld.param.u32 %r2, [kernel_param_0+-4];"),
    "the end of the arguments": (Rule.ADDRESS, "ld.param.v2.u32 {%r2, %r3}, [kernel_param_0+44];"),
    "half a pointer by an octal offset": (
        Rule.POINTER,
        "ld.param.u32 %r2, [kernel_param_0+014]; setp.gt.u32 %p0, %r2, 1;",
    ),
    "a map's words": (Rule.ADDRESS, "ld.param.u32 %r2, [kernel_param_1];"),
    "contents through a counter": (
        Rule.DATA,
        "ld.global.u32 %r2, [%rd0]; atom.global.exch.b32 %r3, [%rd3], %r2;",
    ),
    "a pointer through the carry flag": (
        Rule.INSTRUCTION,
        "mov.b64 {%r2, %r3}, %rd1; add.cc.u32 %r4, %r2, 4096; addc.u32 %r5, 0, 0; st.global.u32 [%rd1], %r5;",
    ),
    "the carry flag": (Rule.INSTRUCTION, "addc.u32 %r5, 0, 0;"),
    "a pointer decides by a logical instruction": (
        Rule.POINTER,
        (
            "mov.b64 {%r2, %r3}, %rd1; setp.gt.u32 %p1, %r0, 3; lop3.or.b32 %r4|%p0, %r2, 4096, 0, 0xc0, %p1;\n"
            "@%p0 st.global.u32 [%rd1], %r0;"
        ),
    ),
    "a pointer decides a jump": (
        Rule.POINTER,
        "mov.b64 {%r2, %r3}, %rd1; lop3.or.b32 %r4|%p0, %r2, 1, 0, 0xc0, %p1;\n@%p0 bra $L1;\n$L1:\n",
    ),
    "a matched pointer": (Rule.POINTER, "match.any.sync.b64 %r2, %rd1, -1;"),
    "a pointer in a matrix store": (
        Rule.POINTER,
        "mov.u32 %r2, smem; mov.b64 {%r3, %r4}, %rd1; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r3};",
    ),
    "a pointer as the size of a copy": (
        Rule.POINTER,
        (
            "mov.u32 %r2, smem; mov.b64 {%r3, %r4}, %rd1; and.b32 %r5, %r3, 15;"
            "cp.async.ca.shared.global [%r2], [%rd0], 16, %r5;"
        ),
    ),
    "a pointer as a coordinate": (
        Rule.POINTER,
        (
            "mov.u32 %r2, smem; mov.b64 {%r3, %r4}, %rd1; mov.b64 %rd7, kernel_param_1;"
            f"{COPY} [%r2], [%rd7, {{%r0, %r3}}], [%r2];"
        ),
    ),
    "a pointer as a count of bytes": (
        Rule.POINTER,
        "mov.u32 %r2, smem; mov.b64 {%r3, %r4}, %rd1; mbarrier.expect_tx.shared.b64 [%r2], %r3;",
    ),
    "a pointer as a mask": (Rule.POINTER, "mov.b64 {%r3, %r4}, %rd1; bar.warp.sync %r3;"),
    "a special register as a coordinate": (
        Rule.REGISTER,
        f"mov.u32 %r2, smem; mov.b64 %rd7, kernel_param_1;{COPY} [%r2], [%rd7, {{%r0, %clock}}], [%r2];",
    ),
    "bytes that need not be loaded": (
        Rule.UNINITIALISED,
        '\n.pragma "used_bytes_mask 1";\nld.global.u32 %r2, [%rd0];\nst.global.u32 [%rd1], %r2;',
    ),
    "an element that need not be loaded": (
        Rule.UNINITIALISED,
        '\n.pragma "used_bytes_mask 15";\nld.global.v2.u32 {%r2, %r3}, [%rd0];\nst.global.u32 [%rd1], %r3;',
    ),
    "another pragma": (Rule.TEXT, '\n.pragma "enable_smem_spilling";'),
    "an instruction behind a source location": (Rule.TEXT, "\n.loc 1 1 1 ld.global.u32 %r2, [4096];"),
    "an instruction behind a split source location": (Rule.TEXT, "\n.loc\n1 1 1 ld.global.u32 %r2, [4096];"),
    "a label of two scopes": (Rule.TEXT, "{ bra $L1; $L1: } { bra $L1; $L1: }"),
    "a sum as an offset": (Rule.TEXT, "ld.param.u32 %r2, [kernel_param_0+4*2];"),
    "a register's other spelling": (Rule.REGISTER, "mov.u32 %r2, %r01;"),
    "a register of an inner range": (
        Rule.UNINITIALISED,
        "{ .reg .b64 %rd<3>; mov.u64 %rd7, 0; ld.global.u32 %r2, [%rd1]; }",
    ),
    "an outer pointer below an inner range": (
        Rule.POINTER,
        "{ .reg .b64 %rd<3>; mov.u64 %rd1, 4096; }\nsetp.gt.u64 %p0, %rd1, 4096;",
    ),
    "a register with a special register's name": (
        Rule.MODULE,
        "{ .reg .b32 %clock; setp.gt.u32 %p0, %r0, 3;\n@%p0 mov.u32 %clock, 1;\nmov.u32 %r2, %clock; }",
    ),
    "a range with special registers' names": (Rule.MODULE, "{ .reg .b32 %pm<4>; }"),
    "a compared pointer": (Rule.POINTER, "setp.gt.u64 %p0, %rd1, 4096;"),
    "half a pointer compared": (Rule.POINTER, "ld.param.u32 %r2, [kernel_param_0+8]; setp.gt.u32 %p0, %r2, 4096;"),
    "a stored pointer": (Rule.POINTER, "mov.u32 %r2, smem; st.shared.u64 [%r2], %rd1;"),
    "a pointer as the condition of a jump": (
        Rule.POINTER,
        "shr.u64 %rd7, %rd1, 20; cvt.u32.u64 %r2, %rd7; setp.eq.u32 %p0, %r2, 1;",
    ),
    "a register without a value": (Rule.UNINITIALISED, "st.global.u32 [%rd1], %r9;"),
    "half of a pair without a value": (Rule.UNINITIALISED, "mov.b64 %rd7, {%r0, %r9}; st.global.u64 [%rd1], %rd7;"),
    "the clock": (Rule.REGISTER, "mov.u32 %r2, %clock;"),
    "the clock in a vector": (Rule.REGISTER, "mov.b64 %rd7, {%r0, %clock};"),
    "the time": (Rule.REGISTER, "mov.u64 %rd7, %globaltimer;"),
    "a register of the future": (Rule.REGISTER, "mov.u32 %r2, %made_up;"),
    "a volatile load": (Rule.INSTRUCTION, "ld.volatile.global.u32 %r2, [%rd0];"),
    "a load of the system's scope": (Rule.INSTRUCTION, "ld.relaxed.sys.global.u32 %r2, [%rd0];"),
    "a generic load": (Rule.INSTRUCTION, "ld.u32 %r2, [%rd0];"),
    "a generic store": (Rule.INSTRUCTION, "st.u32 [%rd1], %r0;"),
    "a trap": (Rule.INSTRUCTION, "trap;"),
    "an exit": (Rule.INSTRUCTION, "exit;"),
    "an unknown instruction": (Rule.INSTRUCTION, "frobnicate.u32 %r2, %r0;"),
    "a long sleep": (Rule.INSTRUCTION, "nanosleep.u32 1000;"),
    "a computed sleep": (Rule.INSTRUCTION, "add.u32 %r2, %r0, 1; nanosleep.u32 %r2;"),
    "the address of code": (Rule.INSTRUCTION, "mov.u64 %rd7, kernel;"),
    "a jump by an index": (
        Rule.INSTRUCTION,
        "$LT: .branchtargets $L1, $L2;\nbrx.idx %r0, $LT;\n$L1:\nmov.u32 %r2, 1;\n$L2:\n",
    ),
    "a call of nothing": (Rule.INSTRUCTION, "call.uni vprintf, (%rd0, %rd1);"),
    "a variable in the body": (Rule.MODULE, "{ .global .u32 hidden; st.global.u32 [hidden], 1; }"),
    "a second entry": (Rule.MODULE, "ret;\n}\n.visible .entry other()\n{\n"),
    "a comment in the middle": (Rule.TEXT, "/* { */ mov.u32 %r2, 1;"),
    "a directive of a preprocessor": (Rule.TEXT, "#define ADD add"),
    "a string": (Rule.TEXT, 'mov.u32 %r2, "x";'),
    "an instruction that cannot be parsed": (Rule.TEXT, "ld.global.u32 %r2, [%rd0 * 2];"),
}


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_what_kernels_do_is_allowed(body: str) -> None:
    assert screen_ptx(module(body), SIGNATURE) == ()


@pytest.mark.parametrize(("rule", "body"), REFUSED.values(), ids=REFUSED)
def test_what_no_kernel_does_is_refused(rule: Rule, body: str) -> None:
    assert rule in rules(module(body))


@pytest.mark.parametrize(
    "before",
    [
        ".extern .func other;\n",
        ".extern .global .align 4 .u32 other;\n",
        ".func (.param .b32 r) f(.param .b32 x)\n{\nret;\n}\n",
        ".global .attribute(.managed) .align 4 .u32 x;\n",
        ".common .global .align 4 .u32 x;\n",
        ".global .texref t;\n",
        ".alias a, b;\n",
        ".global .align 8 .u64 place[1] = {smem};\n",
        "}\n",
    ],
)
def test_declarations_that_no_kernel_needs(before: str) -> None:
    assert rules(module("", before)) & {Rule.MODULE, Rule.TEXT}


def test_module_variables_may_be_read_but_not_written() -> None:
    table = ".global .align 4 .u32 table[2] = {1, 2};\n.const .align 4 .b8 bytes[8] = {1, 2, 3};\n"
    read = "mov.u64 %rd7, table; ld.global.u32 %r2, [%rd7]; ld.const.u8 %r3, [bytes+1];"
    assert rules(module(read, table)) == set()
    assert rules(module("st.global.u32 [table], 1;", table)) == {Rule.VARIABLE}
    assert rules(module("atom.global.add.u32 %r2, [table], 1;", table)) == {Rule.VARIABLE}


def test_entries_and_arguments_are_those_of_the_launch() -> None:
    assert rules(module(""), Signature(("kernel", "second"), 48, SIGNATURE.pointers, SIGNATURE.maps)) == {Rule.MODULE}
    assert rules(module(""), Signature(("kernel",), 48, SIGNATURE.pointers)) == {Rule.MODULE}
    assert rules(module(""), replace(SIGNATURE, argument_bytes=40)) == {Rule.MODULE}


def test_a_finding_names_line_instruction_and_reason() -> None:
    ptx = module("mov.u32 %r2, %clock64;")
    (finding,) = screen_ptx(ptx, SIGNATURE)
    assert "%clock64" in ptx.splitlines()[finding.line - 1] == finding.instruction
    assert str(finding).startswith(f"register: PTX line {finding.line}: ")


def test_debugging_data_is_no_declaration() -> None:
    section = "\n.section\t.debug_str\n{\n$L__info:\n.b8 95,90,0\n\n}\n"
    assert screen_ptx(module("", after=section), SIGNATURE) == ()
    assert rules(module("", after=section.replace(".b8 95", ".global .u32 x; .b8 95"))) == {Rule.MODULE}
