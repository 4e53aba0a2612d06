"""Moves, selections, comparisons and address conversions."""

from __future__ import annotations

from evoengine.emulator.arrays import SIGNED, UNSIGNED
from evoengine.emulator.memory.address_space import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from evoengine.emulator.ptx.records import TYPE_BITS, Imm, Instruction, Pair, Reg, Special, Vec
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of

_TYPES = frozenset(TYPE_BITS)
_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_UNORDERED = {"equ": "!=", "neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}


def _mov(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _TYPES)
    kind = ins.parts[-1]
    d, a = ins.operands
    if isinstance(d, Vec):
        _unpack(w, ins, d)
    elif isinstance(a, Vec):
        _pack(w, ins, a)
    elif kind == "pred":
        if isinstance(a, Imm):
            w.assign(d, "p", w.constant(int(a.text, 0) != 0, "p"))
        else:
            w.alias(d, a, "p")
    else:
        code = code_of(kind)
        if isinstance(a, Reg) and isinstance(d, Reg):
            known = w.known.get(a.index)
            bits = TYPE_BITS[kind]
            if known:  # keep the dtype of the source, which has the same bits
                have = next(iter(known))
                code = (
                    have
                    if have in (UNSIGNED[bits], SIGNED.get(bits), "f" if bits == 32 else "d" if bits == 64 else "e")
                    else code
                )
        w.alias(d, a, code)


def _unpack(w: BlockWriter, ins: Instruction, dest: Vec) -> None:
    bits = TYPE_BITS[ins.parts[-1]]
    part = bits // len(dest.items)
    whole = w.temp(w.use(ins.operands[1], UNSIGNED[bits]))
    for number, item in enumerate(dest.items):
        if item is not None:
            shifted = whole if number == 0 else f"({whole} >> {w.constant(part * number, UNSIGNED[bits])})"
            w.assign(item, UNSIGNED[part], f"{shifted}.astype('{UNSIGNED[part]}')")


def _pack(w: BlockWriter, ins: Instruction, source: Vec) -> None:
    bits = TYPE_BITS[ins.parts[-1]]
    part = bits // len(source.items)
    code = UNSIGNED[bits]
    terms = []
    for number, item in enumerate(source.items):
        if isinstance(item, Special):
            raise Unsupported("special register in a vector")
        value = f"{w.use(item, UNSIGNED[part])}.astype('{code}')"
        terms.append(value if number == 0 else f"({value} << {w.constant(part * number, code)})")
    w.assign(ins.operands[0], code, " | ".join(terms))


def _selp(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _TYPES)
    code = code_of(ins.parts[-1])
    d, a, b, p = ins.operands
    w.assign(d, code, f"where({w.use(p, 'p')}, {w.use(a, code)}, {w.use(b, code)})")


def _slct(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _TYPES, "ftz")
    code, test = code_of(ins.parts[-2]), code_of(ins.parts[-1])
    d, a, b, c = ins.operands
    w.assign(d, code, f"where({w.use(c, test)} >= 0, {w.use(a, code)}, {w.use(b, code)})")


def _comparison(w: BlockWriter, ins: Instruction, operator: str) -> str:
    kind = ins.parts[-1]
    a, b = ins.operands[1], ins.operands[2]
    if kind == "bf16":
        x, y = (f"bf16_to_f32({w.use(v, 'H')})" for v in (a, b))
    elif kind.endswith("x2"):
        raise Unsupported(f"comparison of .{kind}")
    else:
        code = code_of(kind)
        x, y = w.use(a, code), w.use(b, code)
    return _test(x, y, operator, kind)


def _test(x: str, y: str, operator: str, kind: str) -> str:
    if operator in _COMPARE:
        if operator == "ne" and kind in ("f16", "bf16", "f32", "f64"):
            return f"(({x} < {y}) | ({x} > {y}))"
        return f"({x} {_COMPARE[operator]} {y})"
    if operator in _UNORDERED:
        if operator == "equ":
            return f"(~(({x} < {y}) | ({x} > {y})))"
        if operator == "neu":
            return f"({x} != {y})"
        return f"(~({x} {_UNORDERED[operator]} {y}))"
    if operator in ("num", "nan"):
        isnan = f"(np.isnan({x}) | np.isnan({y}))"
        return isnan if operator == "nan" else f"(~{isnan})"
    raise Unsupported(f"comparison .{operator}")


def _setp(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _TYPES, _COMPARE, _UNORDERED, _COMBINE, ("num", "nan", "ftz"))
    if ins.parts[-1].endswith("x2"):
        _setp_packed(w, ins)
        return
    test = _comparison(w, ins, ins.parts[1])
    combine = next((_COMBINE[part] for part in ins.parts[2:] if part in _COMBINE), None)
    other = w.use(ins.operands[3], "p") if combine else None
    d = ins.operands[0]
    if isinstance(d, Pair):
        base = w.temp(test)
        other = w.temp(other) if other else None
        w.assign(d.first, "p", f"{base} {combine} {other}" if combine else base)
        w.assign(d.second, "p", f"~{base} {combine} {other}" if combine else f"~{base}")
    else:
        w.assign(d, "p", f"{test} {combine} {other}" if combine else test)


def _setp_packed(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``setp.lt.f16x2 p|q``: ``p`` compares the lower halves, ``q`` the upper ones."""
    kind, (d, a, b, *more) = ins.parts[-1], ins.operands
    if more or not isinstance(d, Pair):
        raise Unsupported(f"form of setp.{kind}")
    left, right = w.use(a, "I"), w.use(b, "I")
    tests = []
    for half in (0, 1):
        x, y = (w.temp(f"widen_half({bits}, {half}, '{kind}')") for bits in (left, right))
        tests.append(w.temp(_test(x, y, ins.parts[1], "f32")))
    w.assign(d.first, "p", tests[0])
    w.assign(d.second, "p", tests[1])


def _set_half(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``set`` on 16-bit floats: each half becomes 1.0 or 0.0, or all ones or all zeros."""
    kind, result = ins.parts[-1], ins.parts[-2]
    if len(ins.operands) > 3 or (result != kind and not result.startswith(("u", "s"))):
        raise Unsupported(f"result type .{result}")
    code = "I" if kind.endswith("x2") else "H"
    a, b = (w.use(x, code) for x in ins.operands[1:3])
    ones = f"half_op(lambda x, y: {_test('x', 'y', ins.parts[1], 'f32')}.astype('f'), '{kind}', False, False, {a}, {b})"
    if result == kind:
        w.assign(ins.operands[0], code, ones)
    elif code == "I":  # one bit that only 1.0 has, spread over its half
        one = 0x2000 if kind == "f16x2" else 0x0080
        w.assign(ins.operands[0], "I", f"(({ones} & {w.constant(one * 0x10001, 'I')}) // {one}) * 0xFFFF")
    else:
        w.assign(ins.operands[0], "I", f"-(({ones} != 0).astype('I'))")


def _set_value(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _TYPES, _COMPARE, _UNORDERED, _COMBINE, ("num", "nan", "ftz"))
    if ins.parts[-1] in ("f16", "bf16", "f16x2", "bf16x2"):
        _set_half(w, ins)
        return
    test = _comparison(w, ins, ins.parts[1])
    combine = next((_COMBINE[part] for part in ins.parts[2:] if part in _COMBINE), None)
    if combine:
        test = f"({test} {combine} {w.use(ins.operands[3], 'p')})"
    if ins.parts[-2] == "f32":
        w.assign(ins.operands[0], "f", f"{test}.astype('f')")
    elif ins.parts[-2] in ("u32", "s32"):
        w.assign(ins.operands[0], "I", f"-({test}.astype('I'))")
    else:
        raise Unsupported(f"result type .{ins.parts[-2]}")


def _cvta(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("u64", "u32", "to", "global", "shared", "shared::cta", "local", "const", "param"))
    if ins.parts[-1] != "u64":
        raise Unsupported("cvta on 32-bit addresses")
    space = ins.parts[2] if ins.parts[1] == "to" else ins.parts[1]
    window = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}.get(
        space, 0
    )
    d, a = ins.operands
    if window == 0:
        w.alias(d, a, "Q")
    else:
        sign = "-" if ins.parts[1] == "to" else "+"
        w.assign(d, "Q", f"{w.use(a, 'Q')} {sign} {w.constant(window, 'Q')}")


def _isspacep(w: BlockWriter, ins: Instruction) -> None:
    spaces = ("global", "shared", "shared::cta", "local", "const", "param")
    allow(ins, spaces)
    d, a = ins.operands
    high = f"({w.use(a, 'Q')} >> {w.constant(32, 'Q')})"
    space = ins.parts[1]
    windows = f"(({high} == {SHARED_WINDOW >> 32}) | ({high} == {LOCAL_WINDOW >> 32}))"
    tests = {
        "shared": f"{high} == {SHARED_WINDOW >> 32}",
        "shared::cta": f"{high} == {SHARED_WINDOW >> 32}",
        "local": f"{high} == {LOCAL_WINDOW >> 32}",
        "global": f"~{windows}",
    }
    if space not in tests:
        raise Unsupported(f"isspacep.{space}")
    w.assign(d, "p", tests[space])


HANDLERS: dict[str, Handler] = {
    "mov": _mov,
    "selp": _selp,
    "slct": _slct,
    "setp": _setp,
    "set": _set_value,
    "cvta": _cvta,
    "isspacep": _isspacep,
}
