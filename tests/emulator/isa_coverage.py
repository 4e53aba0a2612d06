"""Table of the PTX instructions that the emulator supports, for docs/emulator.md.

The supported types are found by translating probe instructions, so that the table matches the translator.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Final

from evoengine.emulator.faults import EmulatorError
from evoengine.emulator.ptx.parser import parse
from evoengine.emulator.ptx.records import TYPE_BITS
from evoengine.emulator.translate import bulk, control, convert, floating, integer, memory, moving, waits, warp
from evoengine.emulator.translate.program import Program

_FLOATS: Final = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_INTEGERS: Final = tuple(f"{kind}{bits}" for kind in "usb" for bits in (16, 32, 64))
_BYTES: Final = ("u8", "s8", "b8")
_GROUPS: Final[tuple[tuple[str, ModuleType, tuple[str, ...]], ...]] = (
    ("floating point", floating, _FLOATS),
    ("integers, logic, bits", integer, (*_INTEGERS, "u16x2", "s16x2")),
    ("moves, comparisons", moving, _FLOATS + _INTEGERS),
    ("conversions", convert, ()),
    ("memory", memory, _FLOATS + _INTEGERS + _BYTES),
    ("warps", warp, _INTEGERS),
    ("fences and hints", control, ()),
    ("fences and hints", bulk, ()),
    ("asynchronous operations", waits, ()),
)
_REGISTERS: Final = ".reg .pred %p<6>;\n.reg .b16 %h<6>;\n.reg .b32 %r<6>;\n.reg .b64 %d<6>;"
_PREFIXES: Final = {
    "mul": ("lo.", ""),
    "mad": ("lo.", "rn."),
    "madc": ("lo.",),
    "mul24": ("lo.",),
    "mad24": ("lo.",),
    "div": ("", "rn."),
    "fma": ("rn.",),
    "sqrt": ("rn.", "approx."),
    "rcp": ("rn.", "approx."),
    "setp": ("lt.",),
    "set": ("lt.u32.", "lt.f16x2.", "lt.bf16x2."),
    "testp": ("finite.",),
    "shf": ("l.wrap.",),
    "bmsk": ("clamp.", "wrap."),
    "ld": ("global.",),
    "ldu": ("global.",),
    "st": ("global.",),
    "shfl": ("sync.idx.",),
    "match": ("any.sync.",),
    "redux": ("sync.add.", "sync.and."),
    "vote": ("sync.ballot.",),
}
"""Modifiers between opcode and type to try, for opcodes that need some."""
_FIXED: Final = {
    "cvt": "between all integer and float types, packed halves, tf32, e4m3x2, e5m2x2; rounding rn, rz, rm, rp "
    "(tf32: rn, rna, rz); rni, rzi, rmi, rpi to integers; pack.sat of two s32 to 8 or 16 bits",
    "cvta": "global, shared, local, const, param; 64-bit",
    "isspacep": "global, shared, local",
    "ldmatrix": "m8n8, x1, x2, x4, trans, b16",
    "stmatrix": "m8n8, x1, x2, x4, trans, b16",
    "movmatrix": "m8n8, trans, b16",
    "elect": "sync",
    "activemask": "b32",
    "addc": "u32, s32, u64, s64; with add.cc, sub.cc, mad.lo.cc and mad.hi.cc; carry chains within a basic block",
    "subc": "u32, s32, u64, s64",
    "madc": "lo and hi; u32, s32, u64, s64",
    "dp4a": "u32, s32",
    "dp2a": "lo and hi; u32, s32",
    "lop3": "b32; also with a predicate, and or or",
    "fns": "b32",
    **{
        f"v{name}{count}": "u32, s32; sat, add; of whole words, without selectors and masks"
        for name in ("add", "sub", "min", "max", "absdiff", "avrg")
        for count in (2, 4)
    },
    "slct": "all 16, 32 and 64-bit types; selected by f32 or s32",
    "atom": "add, min, max, and, or, xor, exch, cas, inc, dec; shared, global, generic; "
    "u32, s32, u64, s64, b16, b32, b64, f16, f16x2, bf16, bf16x2, f32, f64; in global memory vectors, too: add, min, "
    "max of f16, f16x2, bf16 and bf16x2, add of f32",
    "red": "like atom",
    "prefetch": "no effect; also of tensor maps",
    "fence": "scopes of the GPU and of the system, for the order between CTAs; proxy.async, mbarrier_init; others have "
    "no effect",
    "createpolicy": "no effect",
    "mbarrier": "init, inval, arrive and arrive_drop (count, expect_tx, noComplete), expect_tx, complete_tx, "
    "test_wait, try_wait (token, parity); of the own CTA",
    "setmaxnreg": "inc, dec",
    "prefetchu": "no effect",
    "bar": "warp.sync; sync, arrive, red.popc, red.and, red.or, with numbers and counts",
}
"""Descriptions of instructions whose forms a list of types does not describe."""
_WHOLE: Final = {
    "mma": "m16n8k16 and m16n8k8 on f16 and bf16; m16n8k4 and m16n8k8 on tf32; m16n8k16 and m16n8k32 on s8 and u8, "
    "also satfinite, and on e4m3 and e5m2, accumulators f32 and f16; m8n8k4 on f64; row.col",
    "wmma": "m16n16k16, m32n8k16 and m8n32k16 on f16, bf16, s8 and u8; m16n16k8 on tf32; m8n8k4 on f64; accumulators "
    "f32, f16, s32 (also satfinite), f64; fragment layout differs from the hardware",
    "wgmma": "mma_async.m64nN, dense: k16 on f16 and bf16, k8 on tf32, k32 on e4m3, e5m2, s8 and u8; accumulators f32, "
    "f16 (of f16 and 8-bit floats) and s32, also satfinite; factors 1 and -1; operands in registers or with a swizzle "
    "of 128, 64, 32 bytes or none; commit_group, wait_group; fence, for the order of registers",
    "cp": "async.ca and async.cg of 4, 8, 16 bytes with zero fill; commit_group, wait_group, wait_all; "
    "async.mbarrier.arrive, also with noinc; async.bulk in both directions, async.bulk.tensor of 1 to 5 dimensions "
    "(tile), without multicast; bulk commit_group, wait_group, wait_group.read; reduce.async.bulk to global memory, of "
    "contiguous bytes; bulk prefetch, without effect",
    "bra, brx, ret, exit, trap": "branches, jump tables, exits",
    "barrier": "cta.sync, cta.arrive, cta.red",
    "call": "functions of the module, inlined; not recursive",
}
"""Descriptions of instructions that are not tested with probes."""


def _supported() -> Iterator[tuple[str, str, str]]:
    """Lists ``(group, opcode, types or forms)`` of every supported instruction."""
    for group, module, kinds in _GROUPS:
        for name in sorted(module.HANDLERS):
            if name not in _WHOLE and not name.startswith("barrier_"):
                yield group, name, _FIXED.get(name) or ", ".join(_accepted(name, kinds)) or "no effect"
    for name, forms in _WHOLE.items():
        yield ("tensor cores, copies" if name in ("mma", "wmma", "wgmma", "cp") else "control"), name, forms


def support_table() -> str:
    """Table of supported instructions in Markdown."""
    lines = ["| class | instruction | types and forms |", "|---|---|---|"]
    lines += [f"| {group} | `{name}` | {forms} |" for group, name, forms in _supported()]
    return "\n".join(lines) + "\n"


def _accepted(name: str, kinds: tuple[str, ...]) -> list[str]:
    """Types that the opcode supports in some form."""
    return [kind for kind in kinds if any(_translates(text) for text in _probes(name, kind))]


def _probes(name: str, kind: str) -> Iterator[str]:
    bits = TYPE_BITS.get(kind, 32)
    register = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}[bits]
    for prefix in _PREFIXES.get(name, ("",)):
        opcode = f"{name}.{prefix}{kind}"
        if name in ("ld", "ldu"):
            yield f"{opcode} {register}1, [%d0];"
        elif name == "st":
            yield f"{opcode} [%d0], {register}1;"
        elif name == "vote":
            yield f"{opcode} %r0, %p2, %r1;"
        elif name in ("setp", "testp"):
            compared = f"{register}1" if name == "testp" else f"{register}1, {register}2"
            yield f"{opcode} {'%p0|%p1' if 'x2' in kind else '%p0'}, {compared};"
        else:
            for count in range(1, 5):
                for result, last in ((register, register), (register, "%p"), ("%r", "%r")):
                    sources = [f"{register}{n}" for n in range(1, count)] + [f"{last}5"]
                    yield f"{opcode} {result}0, {', '.join(sources)};"


def _translates(text: str) -> bool:
    module = f".entry k()\n{{\n{_REGISTERS}\n{text}\nret;\n}}\n"
    try:
        program = Program(parse(module))
        program.source(program.flow.blocks[0])
    except EmulatorError:
        return False
    return True
