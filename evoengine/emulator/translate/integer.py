"""Integer arithmetic, logic, shifts and bit fields."""

from __future__ import annotations

from evoengine.emulator.arrays import SIGNED, UNSIGNED
from evoengine.emulator.ptx.records import TYPE_BITS, Imm, Instruction, Pair
from evoengine.emulator.translate import carry, packed
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of

INTS = frozenset(f"{k}{b}" for k in "us" for b in (16, 32, 64))
_BITS = frozenset(("b16", "b32", "b64", "pred"))


def _plain(w: BlockWriter, ins: Instruction, symbol: str) -> None:
    kind = ins.parts[-1]
    code = UNSIGNED[TYPE_BITS[kind]]
    d, a, b = ins.operands
    w.assign(d, code, f"{w.use(a, code)} {symbol} {w.use(b, code)}")


def _add(w: BlockWriter, ins: Instruction) -> None:
    if "cc" in ins.parts:
        carry.add(w, ins)
    elif ins.parts[-1] in packed.PAIRS:
        packed.by_halves(w, ins)
    elif "sat" in ins.parts:
        packed.saturating(w, ins)
    else:
        _plain_sum(w, ins)


def _plain_sum(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS, "wrap")
    _plain(w, ins, "+")


def _sub(w: BlockWriter, ins: Instruction) -> None:
    if "cc" in ins.parts:
        carry.sub(w, ins)
    elif "sat" in ins.parts:
        packed.saturating(w, ins)
    else:
        allow(ins, INTS)
        _plain(w, ins, "-")


def _product(w: BlockWriter, ins: Instruction) -> tuple[str, str]:
    """Expression for a product and its dtype code, which is unsigned for ``.lo`` and ``.hi``."""
    kind = ins.parts[-1]
    bits = TYPE_BITS[kind]
    a, b = ins.operands[1], ins.operands[2]
    signed = kind[0] == "s"
    if "wide" in ins.parts:
        narrow = code_of(kind)
        wide = (SIGNED if signed else UNSIGNED)[2 * bits]
        return f"({w.use(a, narrow)}.astype('{wide}') * {w.use(b, narrow)})", wide
    if "hi" in ins.parts:
        narrow = code_of(kind)
        return f"mul_hi({w.use(a, narrow)}, {w.use(b, narrow)})", UNSIGNED[bits]
    if "lo" in ins.parts:
        code = UNSIGNED[bits]
        return f"({w.use(a, code)} * {w.use(b, code)})", code
    raise Unsupported("mul without .lo, .hi or .wide")


def _mul(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS, ("lo", "hi", "wide"))
    expr, code = _product(w, ins)
    w.assign(ins.operands[0], code, expr)


def _mad(w: BlockWriter, ins: Instruction) -> None:
    if "cc" in ins.parts:
        carry.mad(w, ins)
        return
    allow(ins, INTS, ("lo", "hi", "wide"))
    expr, code = _product(w, ins)
    w.assign(ins.operands[0], code, f"{expr} + {w.use(ins.operands[3], code)}")


def _mul24(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("u32", "s32"), ("lo", "hi"))
    _product24(w, ins, "")


def _mad24(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("u32", "s32"), ("lo", "hi"))
    _product24(w, ins, f" + {w.use(ins.operands[3], 'I')}")


def _product24(w: BlockWriter, ins: Instruction, tail: str) -> None:
    code = code_of(ins.parts[-1])
    a, b = (w.use(x, code) for x in ins.operands[1:3])
    w.assign(ins.operands[0], "I", f"mul24({a}, {b}, {'hi' in ins.parts}){tail}")


def _div(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS)
    code = code_of(ins.parts[-1])
    d, a, b = ins.operands
    w.assign(d, code, f"int_div({w.use(a, code)}, {w.use(b, code)})")


def _rem(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS)
    code = code_of(ins.parts[-1])
    d, a, b = ins.operands
    w.assign(d, code, f"int_rem({w.use(a, code)}, {w.use(b, code)})")


def _sad(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS)
    code = code_of(ins.parts[-1])
    d, a, b, c = ins.operands
    x, y = w.temp(w.use(a, code)), w.temp(w.use(b, code))
    w.assign(d, code, f"where({x} < {y}, {y} - {x}, {x} - {y}) + {w.use(c, code)}")


def _minimum(w: BlockWriter, ins: Instruction) -> None:
    if ins.parts[1] in packed.PAIRS:
        packed.by_halves(w, ins)
        return
    relu = ins.parts[1:] == ("s32", "relu")
    allow(ins, INTS, ("relu",) if relu else ())
    code = code_of(ins.parts[1])
    d, a, b = ins.operands
    value = f"np.{ins.name}imum({w.use(a, code)}, {w.use(b, code)})"
    w.assign(d, code, f"relu({value})" if relu else value)


def _neg(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS)
    code = code_of(ins.parts[-1])
    w.assign(ins.operands[0], code, f"-{w.use(ins.operands[1], code)}")


def _absolute(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS)
    code = code_of(ins.parts[-1])
    w.assign(ins.operands[0], code, f"np.abs({w.use(ins.operands[1], code)})")


def _logic(symbol: str) -> Handler:
    def handler(w: BlockWriter, ins: Instruction) -> None:
        allow(ins, _BITS)
        code = code_of(ins.parts[-1])
        d, a, b = ins.operands
        w.assign(d, code, f"{w.use(a, code)} {symbol} {w.use(b, code)}")

    return handler


def _invert(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _BITS)
    code = code_of(ins.parts[-1])
    w.assign(ins.operands[0], code, f"~{w.use(ins.operands[1], code)}")


def _cnot(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, _BITS)
    code = code_of(ins.parts[-1])
    w.assign(ins.operands[0], code, f"({w.use(ins.operands[1], code)} == 0).astype('{code}')")


def _shift(symbol: str) -> Handler:
    def handler(w: BlockWriter, ins: Instruction) -> None:
        """Translates ``shl`` or ``shr``."""
        allow(ins, _BITS, INTS)
        kind = ins.parts[-1]
        code = code_of(kind)
        d, a, count = ins.operands
        # NumPy's shifts clamp like PTX's: a count of at least the width gives 0, or copies of the sign bit.
        amount = w.use(count, "I")
        if code not in "Ii":
            amount = (
                w.constant(min(int(count.text, 0), 255), code)
                if isinstance(count, Imm)
                else f"clamp_count({amount}, '{code}')"
            )
        elif code == "i":
            amount = w.use(count, "i")
        w.assign(d, code, f"{w.use(a, code)} {symbol} {amount}")

    return handler


def _shf(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("l", "r"), ("clamp", "wrap"), "b32")
    d, lo, hi, count = ins.operands
    left, wrap = "l" in ins.parts, "wrap" in ins.parts
    w.assign(d, "I", f"funnel({w.use(lo, 'I')}, {w.use(hi, 'I')}, {w.use(count, 'I')}, {left}, {wrap})")


def _lop3(w: BlockWriter, ins: Instruction) -> None:
    combine = next((part for part in ins.parts if part in ("and", "or")), None)
    allow(ins, "b32", ("and", "or"))
    d, a, b, c, table, *other = ins.operands
    if not isinstance(table, Imm):
        raise Unsupported("lop3 without a literal table")
    names = [w.use(x, "I") for x in (a, b, c)]
    value = _lop3_expression(int(table.text, 0) & 255, *names)
    if combine is None:
        w.assign(d, "I", value)
        return
    if not isinstance(d, Pair):
        raise Unsupported(f"form of lop3.{combine}")
    value, test = w.temp(value), w.temp(w.use(other[0], "p"))
    if d.first is not None:
        w.assign(d.first, "I", value)
    w.assign(d.second, "p", f"({value} != 0) {'&' if combine == 'and' else '|'} {test}")


def _lop3_expression(table: int, a: str, b: str, c: str) -> str:
    """Boolean expression for a truth table of three inputs; its value is bit ``4a + 2b + c`` of ``table``."""
    common = {
        0x80: f"{a} & {b} & {c}",
        0xFE: f"{a} | {b} | {c}",
        0x96: f"{a} ^ {b} ^ {c}",
        0xEA: f"({a} & {b}) | {c}",
        0xF8: f"{a} | ({b} & {c})",
        0x6A: f"({a} & {b}) ^ {c}",
        0x78: f"{a} ^ ({b} & {c})",
        0xE0: f"{a} & ({b} | {c})",
        0xC8: f"({a} | {c}) & {b}",
        0xA8: f"({a} | {b}) & {c}",
        0xC0: f"{a} & {b}",
        0xFC: f"{a} | {b}",
        0x3C: f"{a} ^ {b}",
        0xF0: a,
        0xCC: b,
        0xAA: c,
        0xCA: f"({a} & {b}) | (~{a} & {c})",
        0xE8: f"({a} & {b}) | ({a} & {c}) | ({b} & {c})",
    }
    if table in common:
        return common[table]
    terms = []
    for bit in range(8):
        if table >> bit & 1:
            signs = zip((a, b, c), (bit >> 2 & 1, bit >> 1 & 1, bit & 1), strict=True)
            terms.append("(" + " & ".join(name if on else f"~{name}" for name, on in signs) + ")")
    return " | ".join(terms) if terms else f"{a} ^ {a}"


def _prmt(w: BlockWriter, ins: Instruction) -> None:
    modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    allow(ins, "b32", modes)
    d, a, b, selector = ins.operands
    mode = next((part for part in ins.parts if part in modes), "")
    w.assign(d, "I", f"prmt({w.use(a, 'I')}, {w.use(b, 'I')}, {w.use(selector, 'I')}, {mode!r})")


def _bfe(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS)
    code = code_of(ins.parts[-1])
    d, a, start, length = ins.operands
    w.assign(d, code, f"bfe({w.use(a, code)}, {w.use(start, 'I')}, {w.use(length, 'I')})")


def _bfi(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("b32", "b64"))
    code = code_of(ins.parts[-1])
    d, a, b, start, length = ins.operands
    w.assign(d, code, f"bfi({w.use(a, code)}, {w.use(b, code)}, {w.use(start, 'I')}, {w.use(length, 'I')})")


def _bmsk(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("clamp", "wrap"), "b32")
    d, start, length = ins.operands
    clamp = "clamp" in ins.parts
    w.assign(d, "I", f"bit_mask({w.use(start, 'I')}, {w.use(length, 'I')}, clamp={clamp})")


def _bfind(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, INTS, "shiftamt")
    code = code_of(ins.parts[-1])
    w.assign(ins.operands[0], "I", f"bfind({w.use(ins.operands[1], code)}, {'shiftamt' in ins.parts})")


def _count(function: str) -> Handler:
    def handler(w: BlockWriter, ins: Instruction) -> None:
        allow(ins, ("b32", "b64"))
        code = code_of(ins.parts[-1])
        w.assign(ins.operands[0], "I", f"{function}({w.use(ins.operands[1], code)})")

    return handler


def _brev(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("b32", "b64"))
    code = code_of(ins.parts[-1])
    w.assign(ins.operands[0], code, f"bit_reverse({w.use(ins.operands[1], code)})")


def _dp4a(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("u32", "s32"))
    d, a, b, c = ins.operands
    signs = f"{ins.parts[1] == 's32'}, {ins.parts[2] == 's32'}"
    w.assign(d, "I", f"dp4a({w.use(a, 'I')}, {w.use(b, 'I')}, {w.use(c, 'I')}, {signs})")


def _dp2a(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("u32", "s32"), ("lo", "hi"))
    d, a, b, c = ins.operands
    signs = f"{ins.parts[2] == 's32'}, {ins.parts[3] == 's32'}, {'hi' in ins.parts}"
    w.assign(d, "I", f"dp2a({w.use(a, 'I')}, {w.use(b, 'I')}, {w.use(c, 'I')}, {signs})")


HANDLERS: dict[str, Handler] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "mad": _mad,
    "mul24": _mul24,
    "mad24": _mad24,
    "div": _div,
    "rem": _rem,
    "sad": _sad,
    "min": _minimum,
    "max": _minimum,
    "neg": _neg,
    "abs": _absolute,
    "and": _logic("&"),
    "or": _logic("|"),
    "xor": _logic("^"),
    "not": _invert,
    "cnot": _cnot,
    "shl": _shift("<<"),
    "shr": _shift(">>"),
    "shf": _shf,
    "lop3": _lop3,
    "prmt": _prmt,
    "bfe": _bfe,
    "bfi": _bfi,
    "bfind": _bfind,
    "bmsk": _bmsk,
    "popc": _count("popcount"),
    "clz": _count("leading_zeros"),
    "brev": _brev,
    "dp4a": _dp4a,
    "dp2a": _dp2a,
    **carry.HANDLERS,
    **packed.HANDLERS,
}
