"""Bulk copies (``cp.async.bulk``), their groups, and cache policies."""

from __future__ import annotations

from typing import Final

from evoengine.emulator.ptx.records import Box, Imm, Instruction
from evoengine.emulator.translate.memory import address
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of

_RANKS: Final = {f"{rank}d": rank for rank in range(1, 6)}
_COPY: Final = ("async", "bulk", "global", "shared::cta", "shared::cluster")
_COMPLETION: Final = "mbarrier::complete_tx::bytes"
_HINT: Final = "L2::cache_hint"
_WORDS: Final = ("u32", "s32", "u64", "s64")
_REDUCED: Final = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    **dict.fromkeys(("min", "max"), (*_WORDS, "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
}
"""Element types of each operation of a bulk reduction. Source: PTX ISA 9.0, "cp.reduce.async.bulk"."""
_REDUCED_TYPES: Final = frozenset(kind for kinds in _REDUCED.values() for kind in kinds)


def copy(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``cp.async.bulk`` and its group instructions."""
    if "commit_group" in ins.parts:
        allow(ins, ("async", "bulk", "commit_group"))
        w.emit(f"X.bulk.commit({w.mask()})")
    elif "wait_group" in ins.parts:
        allow(ins, ("async", "bulk", "wait_group", "read"))
        newest = ins.operands[0]
        if not isinstance(newest, Imm):
            raise Unsupported("wait_group without a literal")
        w.emit(f"wait_bulk(X, {int(newest.text, 0)}, {'read' in ins.parts}, {w.mask()})")
    elif ins.parts[3] == "prefetch":
        allow(ins, ("async", "bulk", "prefetch", "L2", "global", "tensor", "tile", _HINT), _RANKS)  # changes no result
    elif "tensor" in ins.parts:
        _tensor(w, ins)
    else:
        _lines(w, ins)


def _loads(ins: Instruction) -> bool:
    """Whether a copy goes to shared memory; checks its spaces and its kind of completion."""
    target, source = [part for part in ins.parts if part in _COPY and part not in ("async", "bulk")]
    if source == "global" and target != "global" and _COMPLETION in ins.parts:
        return True
    if target == "global" and source == "shared::cta" and "bulk_group" in ins.parts:
        return False
    raise Unsupported("direction of a bulk copy")


def _tensor(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _COPY, ("tensor", "tile", "bulk_group", _COMPLETION, _HINT), _RANKS)
    rank = next((_RANKS[part] for part in ins.parts if part in _RANKS), 0)
    loads = _loads(ins)
    first, second, *others = ins.operands
    box, local = (second, first) if loads else (first, second)
    if not isinstance(box, Box) or len(box.coordinates) != rank:
        raise Unsupported("tensor operand of a bulk copy")
    coordinates = "".join(f"{w.use(item, 'i')}, " for item in box.coordinates)
    tensor, at = address(w, box.map, "global"), address(w, local, "shared")
    if loads:
        barrier = address(w, others[0], "shared")
        w.emit(f"load_tensor(X, {at}, {tensor}, ({coordinates}), {barrier}, {w.mask()}, {w.site})")
    else:
        w.emit(f"store_tensor(X, {tensor}, ({coordinates}), {at}, {w.mask()}, {w.site})")


def _lines(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _COPY, ("bulk_group", _COMPLETION, _HINT))
    loads = _loads(ins)
    target, source, size, *others = ins.operands
    count = w.use(size, "I")
    if loads:
        near, far, barrier = address(w, target, "shared"), address(w, source, "global"), address(w, others[0], "shared")
        w.emit(f"load_bulk(X, {near}, {far}, {count}, {barrier}, {w.mask()}, {w.site})")
    else:
        far, near = address(w, target, "global"), address(w, source, "shared")
        w.emit(f"store_bulk(X, {far}, {near}, {count}, {w.mask()}, {w.site})")


def reduce(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``cp.reduce.async.bulk`` from shared to global memory."""
    if "tensor" in ins.parts or ins.parts[:6] != ("cp", "reduce", "async", "bulk", "global", "shared::cta"):
        raise Unsupported("reduction of a tensor or to shared memory")
    allow(
        ins,
        ("reduce", "async", "bulk", "global", "shared::cta", "bulk_group", "noftz", _HINT),
        _REDUCED,
        _REDUCED_TYPES,
    )
    operation, kind = next((part for part in ins.parts if part in _REDUCED), ""), ins.parts[-1]
    if kind not in _REDUCED.get(operation, ()) or "bulk_group" not in ins.parts:
        raise Unsupported(f"bulk reduction .{operation} of .{kind}")
    far, near = address(w, ins.operands[0], "global"), address(w, ins.operands[1], "shared")
    how = (operation, kind, "H" if kind == "f16" else code_of(kind))
    w.emit(f"store_bulk(X, {far}, {near}, {w.use(ins.operands[2], 'I')}, {w.mask()}, {w.site}, {how})")


def arrive(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``cp.async.mbarrier.arrive``."""
    allow(ins, ("async", "mbarrier", "arrive", "noinc", "shared", "shared::cta", "b64"))
    counted, at = "noinc" in ins.parts, address(w, ins.operands[0], "shared")
    w.emit(f"mbarrier_arrive_copies(X, {at}, {counted}, {w.mask()}, {w.site})")


def _policy(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``createpolicy`` to zero: cache policies change no result."""
    w.assign(ins.operands[0], "Q", w.constant(0, "Q"))


HANDLERS: dict[str, Handler] = {"createpolicy": _policy}
