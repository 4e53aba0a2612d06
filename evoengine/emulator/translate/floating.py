"""Floating-point arithmetic in f32, f64, f16(x2) and bf16(x2).

``.ftz`` is accepted but ignored: subnormal f32 results are kept. Rounding is to nearest even; f32 and f64
arithmetic also support directed rounding. f16 and bf16 results are computed in f32 (fma in f64) and rounded once.
"""

from __future__ import annotations

from evoengine.emulator.ptx.records import Instruction
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of

HALVES = frozenset(("f16", "f16x2", "bf16", "bf16x2"))
FLOATS = frozenset(("f32", "f64")) | HALVES
_ROUND = ("rn", "ftz", "sat")
_DIRECTED = ("rz", "rm", "rp")


def is_float(ins: Instruction) -> bool:
    """Whether the instruction has a floating-point type."""
    return ins.parts[-1] in FLOATS


def _unpacked(w: BlockWriter, ins: Instruction, build: str, arity: int) -> None:
    """Translates an instruction on 16-bit floats: unpacks to wider floats, computes, rounds and packs.

    Args:
        w: Writer of the block.
        ins: Instruction.
        build: Expression of the wide operands ``{0}``, ``{1}`` and ``{2}``.
        arity: Number of operands.
    """
    kind = ins.parts[-1]
    if sum(part in FLOATS for part in ins.parts) > 1:
        raise Unsupported("mixed precision")
    bits = "I" if kind.endswith("x2") else "H"
    names = [w.use(x, bits) for x in ins.operands[1 : 1 + arity]]
    relu, sat = "relu" in ins.parts, "sat" in ins.parts
    arguments = ", ".join(names)
    params = ", ".join("xyz"[:arity])
    body = build.format(*"xyz"[:arity])
    w.assign(ins.operands[0], bits, f"half_op(lambda {params}: {body}, '{kind}', {relu}, {sat}, {arguments})")


def _directed(w: BlockWriter, ins: Instruction, operation: str) -> bool:
    """Translates an instruction with directed rounding; returns False for other instructions."""
    mode = next((part for part in ins.parts if part in _DIRECTED), None)
    if mode is None:
        return False
    if ins.parts[-1] not in ("f32", "f64"):
        raise Unsupported(f"rounding .{mode}")
    code = code_of(ins.parts[-1])
    function = "directed" if code == "f" else "directed_f64"
    d, *sources = ins.operands
    values = ", ".join(w.use(source, code) for source in sources)
    w.assign(d, code, _saturate(ins, f"{function}('{operation}', '{mode}', {values})"))
    return True


def _saturate(ins: Instruction, expr: str) -> str:
    return f"saturate({expr})" if "sat" in ins.parts else expr


def _binary(symbol: str) -> Handler:
    def handler(w: BlockWriter, ins: Instruction) -> None:
        """Translates ``add``, ``sub`` or ``mul``."""
        allow(ins, FLOATS, _ROUND, _DIRECTED)
        if _directed(w, ins, {"+": "add", "-": "sub", "*": "mul"}[symbol]):
            return
        if ins.parts[-1] in HALVES:
            _unpacked(w, ins, f"{{0}} {symbol} {{1}}", 2)
            return
        code = code_of(ins.parts[-1])
        d, a, b = ins.operands
        w.assign(d, code, _saturate(ins, f"{w.use(a, code)} {symbol} {w.use(b, code)}"))

    return handler


def _fma(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, FLOATS, _ROUND, _DIRECTED, "relu")
    if _directed(w, ins, "fma"):
        return
    if ins.parts[-1] in HALVES:
        _unpacked(w, ins, "fma_half({0}, {1}, {2})", 3)
        return
    code = code_of(ins.parts[-1])
    d, a, b, c = ins.operands
    w.assign(d, code, _saturate(ins, f"fma_{code}({w.use(a, code)}, {w.use(b, code)}, {w.use(c, code)})"))


def _div(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("f32", "f64"), _ROUND, _DIRECTED, ("approx", "full"))
    if _directed(w, ins, "div"):
        return
    code = code_of(ins.parts[-1])
    d, a, b = ins.operands
    w.assign(d, code, f"{w.use(a, code)} / {w.use(b, code)}")


def _minmax(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, FLOATS, ("ftz", "NaN"))
    function = {"max": "larger", "min": "smaller"}[ins.name] + ("_or_nan" if "NaN" in ins.parts else "")
    if ins.parts[-1] in HALVES:
        _unpacked(w, ins, f"{function}({{0}}, {{1}})", 2)
        return
    code = code_of(ins.parts[-1])
    d, *sources = ins.operands
    expr = w.use(sources[0], code)
    for source in sources[1:]:
        expr = f"{function}({expr}, {w.use(source, code)})"
    w.assign(d, code, expr)


def _neg(w: BlockWriter, ins: Instruction) -> None:
    _sign(w, ins, "^", 0x8000)


def _absolute(w: BlockWriter, ins: Instruction) -> None:
    _sign(w, ins, "&", 0x7FFF)


def _sign(w: BlockWriter, ins: Instruction, symbol: str, half_mask: int) -> None:
    allow(ins, FLOATS, "ftz")
    kind = ins.parts[-1]
    d, a = ins.operands
    if kind in HALVES:
        code = "I" if kind.endswith("x2") else "H"
        mask = half_mask * (0x10001 if code == "I" else 1)
        w.assign(d, code, f"{w.use(a, code)} {symbol} {w.constant(mask, code)}")
    else:
        code = code_of(kind)
        w.assign(d, code, f"-{w.use(a, code)}" if symbol == "^" else f"np.abs({w.use(a, code)})")


def _special(expression: str) -> Handler:
    def handler(w: BlockWriter, ins: Instruction) -> None:
        """Translates a special function of one operand."""
        allow(ins, FLOATS, ("rn", "approx", "ftz"), _DIRECTED if ins.name in ("rcp", "sqrt") else ())
        if _directed(w, ins, ins.name):
            return
        if ins.parts[-1] in HALVES:
            _unpacked(w, ins, expression, 1)
            return
        code = code_of(ins.parts[-1])
        w.assign(ins.operands[0], code, expression.format(w.use(ins.operands[1], code)))

    return handler


def _tanh(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, FLOATS, "approx")
    _special("tanh_approx({0})" if ins.parts[-1] == "f32" else "np.tanh({0})")(w, ins)


def _testp(w: BlockWriter, ins: Instruction) -> None:
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    allow(ins, ("f32", "f64"), tests)
    code = code_of(ins.parts[-1])
    w.assign(ins.operands[0], "p", f"testp({w.use(ins.operands[1], code)}, '{ins.parts[1]}')")


def _copysign(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("f32", "f64"))
    code = code_of(ins.parts[-1])
    d, a, b = ins.operands
    w.assign(d, code, f"np.copysign({w.use(b, code)}, {w.use(a, code)})")


HANDLERS: dict[str, Handler] = {
    "add": _binary("+"),
    "sub": _binary("-"),
    "mul": _binary("*"),
    "fma": _fma,
    "mad": _fma,
    "div": _div,
    "min": _minmax,
    "max": _minmax,
    "neg": _neg,
    "abs": _absolute,
    "ex2": _special("np.exp2({0})"),
    "lg2": _special("np.log2({0})"),
    "rcp": _special("reciprocal({0})"),
    "sqrt": _special("np.sqrt({0})"),
    "rsqrt": _special("reciprocal(np.sqrt({0}))"),
    "tanh": _tanh,
    "sin": _special("np.sin({0})"),
    "cos": _special("np.cos({0})"),
    "testp": _testp,
    "copysign": _copysign,
}
