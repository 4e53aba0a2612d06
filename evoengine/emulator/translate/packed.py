"""Integers in the 16-bit or 8-bit lanes of a word, saturating sums, and searches for set bits."""

from __future__ import annotations

import re
from typing import Final

from evoengine.emulator.ptx.records import Instruction
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow

PAIRS: Final = ("u16x2", "s16x2")
_VIDEO: Final = re.compile(r"v(add|sub|min|max|absdiff|avrg)([24])$")


def by_halves(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``add``, ``min`` or ``max`` on ``.u16x2`` or ``.s16x2``."""
    signed = ins.parts[1] == "s16x2"
    relu = ins.name in ("min", "max") and signed
    allow(ins, PAIRS, ("relu",) if relu else ())
    d, a, b = ins.operands
    signs = (signed,) * 3
    w.assign(d, "I", f"by_lane('{ins.name}', 2, {signs}, {w.use(a, 'I')}, {w.use(b, 'I')}, relu={'relu' in ins.parts})")


def saturating(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``add.sat.s32`` or ``sub.sat.s32``."""
    allow(ins, "sat", "s32")
    d, a, b = ins.operands
    w.assign(d, "i", f"saturated('{ins.name}', {w.use(a, 'i')}, {w.use(b, 'i')})")


def _video(w: BlockWriter, ins: Instruction) -> None:
    """Translates a SIMD video instruction on whole words, such as ``vabsdiff4.u32.u32.u32.add``."""
    found = _VIDEO.match(ins.name)
    types = ins.parts[1:4]
    if found is None or len(types) != 3 or not set(types) <= {"u32", "s32"}:
        raise Unsupported("form of a video instruction")
    allow(ins, ("u32", "s32"), ("sat", "add"))
    d, a, b, c = ins.operands
    signs = tuple(kind == "s32" for kind in types)
    options = f"sat={'sat' in ins.parts}, addend={w.use(c, 'I') if 'add' in ins.parts else None}"
    operands = f"{w.use(a, 'I')}, {w.use(b, 'I')}"
    w.assign(d, "I", f"by_lane('{found.group(1)}', {found.group(2)}, {signs}, {operands}, {options})")


def _nth_set(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "b32")
    d, mask, base, offset = ins.operands
    w.assign(d, "I", f"find_nth_set({w.use(mask, 'I')}, {w.use(base, 'I')}, {w.use(offset, 'i')})")


HANDLERS: dict[str, Handler] = {
    "fns": _nth_set,
    **{f"v{name}{count}": _video for name in ("add", "sub", "min", "max", "absdiff", "avrg") for count in (2, 4)},
}
