"""Loads, stores, atomics and asynchronous copies."""

from __future__ import annotations

from evoengine.emulator.arrays import UNSIGNED
from evoengine.emulator.ptx.records import TYPE_BITS, Imm, Instruction, Mem, Operand, Pair, Reg, Sym, Vec
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of

_SPACES = ("global", "shared", "shared::cta", "local", "const", "param", "param::entry")
_HINTS = (
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "volatile",
    "weak",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "L1::evict_first",
    "L1::evict_last",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::cache_hint",
)
_ORDERED_SPACES = ("shared", "generic")
"""Spaces in which ``acquire`` and ``release`` order the warps of a CTA; those of global memory order all warps."""
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_VECTOR_ATOMICS = {
    "f32": (2, 4),
    **dict.fromkeys(("f16", "bf16"), (2, 4, 8)),
    **dict.fromkeys(("f16x2", "bf16x2"), (2, 4)),
}
"""Lengths of the vectors that an atomic takes, by the type of their elements."""
_ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _space(ins: Instruction) -> str:
    found = next((part for part in ins.parts[1:] if part in _SPACES), "generic")
    return {"shared::cta": "shared", "param::entry": "param", "const": "global"}.get(found, found)


def address(w: BlockWriter, operand: Operand, space: str) -> str:
    """Expression for the address of a memory operand: 32 bits wide for shared memory, 64 bits for other spaces."""
    if not isinstance(operand, Mem):
        raise Unsupported("address operand")
    code = "I" if space == "shared" else "Q"
    base, offset = operand.base, operand.offset
    if isinstance(base, Imm):
        return w.constant(int(base.text, 0) + offset, code)
    if isinstance(base, Sym):
        return w.program.symbol_address(Sym(base.name, base.offset + offset), code)
    value = w.use(base, code)
    return f"{value} + {w.constant(offset, code)}" if offset else value


def _require_width(kind: str, count: int) -> None:
    """Raises :class:`Unsupported` for elements of more than 128 bits, which exist on sm_100 and later only."""
    if TYPE_BITS[kind] * count > 128 or kind == "b128":
        raise Unsupported(f"access of {count} .{kind}")


def _without_policy(ins: Instruction) -> tuple[Operand, ...]:
    """Returns the operands without a cache policy, which changes no result."""
    return ins.operands[:-1] if "L2::cache_hint" in ins.parts else ins.operands


def _load(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _SPACES, _HINTS, _VECTORS, TYPE_BITS)
    kind = ins.parts[-1]
    space = _space(ins)
    d, source = ins.operands[:2]
    code = code_of(kind)
    count = next((_VECTORS[part] for part in ins.parts if part in _VECTORS), 1)
    _require_width(kind, count)
    assert isinstance(source, Mem)
    if space == "param" and isinstance(source.base, Sym):
        offset = w.program.address_of(source.base) + source.offset
        value = w.temp(f"X.param({offset}, '{code}', {count})")
    else:
        ordered = ", True" if space in _ORDERED_SPACES and "acquire" in ins.parts else ""
        call = f"X.load_{space}({address(w, source, space)}, '{code}', {count}, {w.mask()}, {w.site}{ordered})"
        value = w.temp(call)
    if count == 1:
        target = d.items[0] if isinstance(d, Vec) else d
        w.assign(target, code, value)
        return
    if not isinstance(d, Vec) or len(d.items) != count:
        raise Unsupported("vector load to a destination that is no vector")
    for number, item in enumerate(d.items):
        w.assign(item, code, f"{value}[{number}]")


def _store(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _SPACES, _HINTS, _VECTORS, TYPE_BITS)
    space = _space(ins)
    code = code_of(ins.parts[-1])
    target, source = ins.operands[:2]
    items: tuple[Operand, ...] = source.items if isinstance(source, Vec) else (source,)
    _require_width(ins.parts[-1], len(items))
    values = ", ".join(w.use(item, code) for item in items)
    ordered = ", True" if space in _ORDERED_SPACES and "release" in ins.parts else ""
    w.emit(f"X.store_{space}({address(w, target, space)}, '{code}', ({values},), {w.mask()}, {w.site}{ordered})")


def _atomic(w: BlockWriter, ins: Instruction) -> None:
    if _VECTORS.keys() & {*ins.parts}:
        _vector_atomic(w, ins)
        return
    allow(ins, _SPACES, _HINTS, _ATOMICS, TYPE_BITS, "noftz")
    space = _space(ins)
    kind = ins.parts[-1]
    operation = next((part for part in ins.parts[1:] if part in _ATOMICS), None)
    if operation is None or kind == "b128":
        raise Unsupported("atomic operation")
    returns = ins.name == "atom"
    operands = (*(() if returns else (None,)), *_without_policy(ins))
    code = "H" if kind == "f16" else code_of(kind)  # atomics take halves as bits
    values = ", ".join(w.use(item, code) for item in operands[2:])
    at = address(w, operands[1], space)
    how = f"Atomic('{operation}', '{kind}', '{code}', ({values},))"
    call = f"X.atomic('{space}', {at}, {how}, {w.mask()}, {w.site})"
    if returns and operands[0] is not None:
        w.assign(operands[0], code, call)
    else:
        w.emit(call)


def _vector_atomic(w: BlockWriter, ins: Instruction) -> None:
    """Translates an atomic on a vector in global memory: one atomic for each element, in no common order."""
    allow(ins, ("global",), _HINTS, ("add", "min", "max"), _VECTORS, _VECTOR_ATOMICS, "noftz")
    kind = ins.parts[-1]
    count = next(_VECTORS[part] for part in ins.parts if part in _VECTORS)
    operation = next((part for part in ins.parts if part in ("add", "min", "max")), None)
    if kind not in _VECTOR_ATOMICS or count not in _VECTOR_ATOMICS[kind] or operation is None:
        raise Unsupported(f"vector atomic of {count} .{kind}")
    if kind == "f32" and operation != "add":
        raise Unsupported(f"vector atomic .{operation} of .f32")
    operands = _without_policy(ins)
    old, target, source = operands if ins.name == "atom" else (None, *operands)
    if not isinstance(source, Vec) or len(source.items) != count or not isinstance(old, Vec | None):
        raise Unsupported("operands of a vector atomic")
    code = "H" if kind == "f16" else code_of(kind)
    size = TYPE_BITS[kind] // 8
    at, mask = w.temp(address(w, target, "global")), w.mask()
    w.emit(f"X.memory.index({at}, {count * size}, {mask}, {w.site})  # bounds and alignment of the whole vector")
    items = (None,) * count if old is None else old.items
    for number, (item, value) in enumerate(zip(items, source.items, strict=True)):
        element = f"{at} + {w.constant(number * size, 'Q')}" if number else at
        how = f"Atomic('{operation}', '{kind}', '{code}', ({w.use(value, code)},))"
        found = w.temp(f"X.atomic('global', {element}, {how}, {mask}, {w.site})")
        w.assign(item, code, found)


def copy_async(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``cp.async`` and its group instructions."""
    parts = ins.parts
    mask = w.mask()
    if parts[2:] == ("commit_group",):
        w.emit(f"X.copies.commit({mask})")
    elif parts[2:] == ("wait_group",):
        newest = ins.operands[0]
        if not isinstance(newest, Imm):
            raise Unsupported("wait_group without a literal")
        w.emit(f"X.copies.wait({int(newest.text, 0)}, {mask})")
    elif parts[2:] == ("wait_all",):
        w.emit(f"X.copies.wait(None, {mask})")
    else:
        _copy(w, ins, mask)


def _copy(w: BlockWriter, ins: Instruction, mask: str) -> None:
    hints = ("L2::64B", "L2::128B", "L2::256B", "L2::cache_hint")
    allow(ins, "async", ("ca", "cg", "shared", "shared::cta", "global"), hints)
    operands = _without_policy(ins)
    if "bulk" in ins.parts or len(operands) < 3 or not isinstance(operands[2], Imm):
        raise Unsupported("form of cp.async")
    target, source, size_operand = operands[:3]
    size = int(size_operand.text, 0) if isinstance(size_operand, Imm) else 0
    if size not in ((16,) if "cg" in ins.parts else (4, 8, 16)):
        raise Unsupported(f"cp.async of {size} bytes")
    keep = "None"
    if len(operands) > 3:
        limit = operands[3]
        if isinstance(limit, Reg) and w.program.canonical[limit.index] == "p":
            keep = f"where({w.use(limit, 'p')}, {w.constant(0, 'I')}, {w.constant(size, 'I')})"
        else:
            keep = w.use(limit, "I")
    to, at = address(w, target, "shared"), address(w, source, "global")
    w.emit(f"X.copy_async({to}, {at}, {size}, {keep}, {mask}, {w.site})")


def _prefetch(_: BlockWriter, __: Instruction) -> None:
    """Translates a prefetch hint to nothing."""


def _load_matrix(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"))
    d, source = ins.operands
    count = next((int(part[1]) for part in ins.parts if part in ("x1", "x2", "x4")), 0)
    items = d.items if isinstance(d, Vec) else (d,)
    if len(items) != count:
        raise Unsupported("ldmatrix destination")
    w.require_warps()
    value = w.temp(
        f"X.load_matrices({address(w, source, 'shared')}, {count}, {'trans' in ins.parts}, {w.mask()}, {w.site})"
    )
    w.bind([item if not isinstance(item, Pair) else None for item in items], UNSIGNED[32], value)


def _store_matrix(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"))
    target, source = ins.operands
    items: tuple[Operand, ...] = source.items if isinstance(source, Vec) else (source,)
    w.require_warps()
    values = ", ".join(w.use(item, "I") for item in items)
    w.emit(
        f"X.store_matrices({address(w, target, 'shared')}, ({values},), {'trans' in ins.parts}, {w.mask()}, {w.site})"
    )


HANDLERS: dict[str, Handler] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "prefetch": _prefetch,
    "prefetchu": _prefetch,
    "ldmatrix": _load_matrix,
    "stmatrix": _store_matrix,
}
