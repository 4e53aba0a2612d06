"""Lists of what PTX of a generated kernel may contain: instructions with their modifiers, and special registers.

Instructions that only compute on registers are allowed with all modifiers. Those with an effect beyond a register are
listed form by form. Everything else is refused, including what future PTX versions add.
"""

from __future__ import annotations

import re
from typing import Final

from evoengine.emulator.ptx.declarations import parse_int
from evoengine.emulator.ptx.records import Entry, Imm, Instruction, Operand, Reg
from evoengine.emulator.screen.provenance import written

LONGEST_SLEEP_NS: Final = 32
"""Longest ``nanosleep``: as a hint to the scheduler, it needs no more."""

_COMPUTING: Final = re.compile(
    "abs|add|and|bfe|bfi|bfind|bmsk|brev|clz|cnot|copysign|cos|cvt|div|dp2a|dp4a|elect|ex2|fma|fns|lg2|lop3|mad|mad24"
    "|match|max|min|mma|mov|mul|mul24|neg|not|or|popc|prmt|rcp|redux|rem|rsqrt|sad|selp|set|setp|shf|shfl|shl|shr"
    "|sin|slct|sqrt|sub|szext|tanh|testp|vote|xor"
)
"""Instructions whose only effect is on registers; not those that read the carry flag."""

_TYPE: Final = r"\.[bsuf](?:8|16|32|64)|\.(?:f16|bf16)(?:x2)?"
_CACHE: Final = (
    r"(?:\.(?:ca|cg|cs|wb|wt|nc|weak))*(?:\.L1::(?:evict_\w+|no_allocate))?(?:\.L2::(?:evict_\w+|cache_hint))?"
)
_CACHE_AND_PREFETCH: Final = _CACHE + r"(?:\.L2::(?:64|128|256)B)?"
_VECTOR: Final = r"(?:\.v[248])?"
_SPACE: Final = r"\.(?:global|shared|shared::cta|local)"
_TENSOR: Final = r"cp\.async\.bulk\.tensor\.[1-5]d"
_ON_MBARRIER: Final = "(?:init|inval|arrive|arrive.expect_tx|expect_tx|(?:test_wait|try_wait)(?:.parity)?)"
_OPERATION: Final = r"\.(?:add|min|max|and|or|xor|exch|cas|inc|dec)"

_FORMS: Final = tuple(
    re.compile(form)
    for form in (
        rf"ld(?:\.(?:global|shared|shared::cta|local|const|param)){_CACHE_AND_PREFETCH}{_VECTOR}(?:{_TYPE})",
        rf"st{_SPACE}{_CACHE}{_VECTOR}(?:{_TYPE})",
        rf"(?:atom|red)\.(?:shared|shared::cta){_OPERATION}(?:{_TYPE})",
        (
            r"(?:atom|red)(?:\.(?:relaxed|acquire|release|acq_rel))?(?:\.(?:cta|gpu))?\.(?:global|shared)"
            rf"{_OPERATION}(?:{_TYPE})"
        ),
        r"cvta\.to\.(?:global|shared|local|const)\.u64",
        r"cvta\.(?:param|shared|local)\.u64",
        r"(?:ldmatrix|stmatrix)\.sync\.aligned\.m8n8\.x[124](?:\.trans)?\.shared(?:::cta)?\.b16",
        r"wmma\.(?:load\.[abc]|store\.d)\.sync\.aligned\.(?:row|col)\.m\d+n\d+k\d+\.shared\.\w+",
        r"wmma\.load\.[ab]\.sync\.aligned\.(?:row|col)\.m\d+n\d+k\d+\.bf16",  # NVRTC writes it with a generic address
        r"wmma\.mma\.sync\.aligned[.\w]*",
        r"wgmma\.(?:fence|commit_group|wait_group)\.sync\.aligned",
        r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k\d+[.\w]*",
        r"cp\.async\.(?:ca|cg)\.shared(?:::cta)?\.global(?:\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?",
        r"cp\.async\.(?:commit_group|wait_group|wait_all)",
        r"cp\.async\.mbarrier\.arrive(?:\.noinc)?(?:\.shared(?:::cta)?)?\.b64",
        r"cp\.async\.bulk\.(?:commit_group|wait_group(?:\.read)?)",
        rf"{_TENSOR}\.shared::(?:cta|cluster)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes(?:\.L2::cache_hint)?",
        rf"{_TENSOR}\.global\.shared::cta(?:\.tile)?\.bulk_group(?:\.L2::cache_hint)?",
        r"prefetch\.tensormap",
        r"createpolicy\.fractional\.L2::evict_\w+\.b64",
        rf"mbarrier\.{_ON_MBARRIER}\.shared(?:::cta)?\.b64",
        r"fence\.proxy\.async(?:\.shared::cta|\.global)?",
        r"fence\.mbarrier_init\.release\.cluster",
        r"fence\.(?:acq_rel|sc)\.(?:cta|gpu)",
        r"membar\.(?:cta|gl)",
        r"(?:bar|barrier)(?:\.cta)?\.(?:sync|arrive)(?:\.aligned)?",
        r"(?:bar|barrier)(?:\.cta)?\.red\.(?:popc|and|or)(?:\.aligned)?\.(?:u32|pred)",
        r"barrier_(?:note|look)\.(?:popc|and|or)",
        r"bar\.warp\.sync",
        r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32",
        r"nanosleep\.u32",
        r"bra(?:\.uni)?",
        r"ret(?:\.uni)?",
    )
)
"""Forms of instructions with an effect beyond a register; without generic addresses, volatile or system scope."""

_REASONS: Final = {
    "call": "a call: device functions must be inlined, and no library function may be called",
    "brx": "a jump by an index, which may lie outside of the list of targets",
    "trap": "it ends the kernel by a fault",
    "brkpt": "it ends the kernel by a fault",
    "exit": "threads end only by returning",
    "alloca": "memory whose size is not known",
    "discard": "it makes the contents of memory undefined",
    "mapa": "an address of another CTA",
    "isspacep": "generic addresses are not allowed",
    "pmevent": "a signal to a profiler",
    **dict.fromkeys(("addc", "subc", "madc"), "it reads the carry flag"),
}

_REGISTERS: Final = re.compile(r"%(?:tid|ntid|ctaid|nctaid)(?:\.[xyz])?|%laneid|%lanemask_(?:eq|le|lt|ge|gt)")


def computes(ins: Instruction) -> bool:
    """Whether the only effect of an instruction is on registers."""
    return _COMPUTING.fullmatch(ins.name) is not None


def instruction_objection(ins: Instruction) -> str:
    """Returns why an instruction is not allowed; empty if it is."""
    if computes(ins):
        return "it writes the carry flag" if "cc" in ins.parts else ""
    if not any(form.fullmatch(ins.opcode) for form in _FORMS):
        return _REASONS.get(ins.name, "not on the list of allowed instructions")
    return ""


def sleep_objection(ins: Instruction, entry: Entry) -> str:
    """Returns why a ``nanosleep`` is not allowed; empty if it is, and for other instructions."""
    if ins.name != "nanosleep":
        return ""
    (time,) = ins.operands
    given: list[Operand] = [time]
    if isinstance(time, Reg):
        writers = [other for other in entry.instructions if time in written(other)]
        given = [other.operands[1] if other.opcode == "mov.u32" else None for other in writers]
    if all(isinstance(value, Imm) and parse_int(value.text) <= LONGEST_SLEEP_NS for value in given):
        return ""
    return f"it waits for more than {LONGEST_SLEEP_NS} ns, or for a time that is not a literal"


def register_allowed(name: str) -> bool:
    """Whether a special register is a function of the launch and the thread alone."""
    return _REGISTERS.fullmatch(name) is not None
