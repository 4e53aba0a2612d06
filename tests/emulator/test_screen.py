"""The screen of PTX: each rule on kernels of some lines, written by hand."""

from __future__ import annotations

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


ALLOWED = {
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


def test_a_finding_names_line_instruction_and_reason() -> None:
    ptx = module("mov.u32 %r2, %clock64;")
    (finding,) = screen_ptx(ptx, SIGNATURE)
    assert "%clock64" in ptx.splitlines()[finding.line - 1] == finding.instruction
    assert str(finding).startswith(f"register: PTX line {finding.line}: ")


def test_debugging_data_is_no_declaration() -> None:
    section = "\n.section\t.debug_str\n{\n$L__info:\n.b8 95,90,0\n\n}\n"
    assert screen_ptx(module("", after=section), SIGNATURE) == ()
    assert rules(module("", after=section.replace(".b8 95", ".global .u32 x; .b8 95"))) == {Rule.MODULE}
