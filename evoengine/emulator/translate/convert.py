"""Conversions: ``cvt`` between integers, floats and packed 16-bit and 8-bit floats."""

from __future__ import annotations

from evoengine.emulator.ptx.records import TYPE_BITS, Instruction
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of

_INTEGER_ROUND = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}
_ROUND = ("rn", "rz", "rm", "rp", "rna")
_DIRECTED = ("rm", "rp")
_FP8 = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_TYPES = frozenset(TYPE_BITS) | {"tf32"}
_FLOATS = ("f16", "bf16", "f32", "f64")


def _as_float(w: BlockWriter, ins: Instruction, kind: str) -> str:
    source = ins.operands[1]
    return f"bf16_to_f32({w.use(source, 'H')})" if kind == "bf16" else w.use(source, code_of(kind))


def _packed(w: BlockWriter, ins: Instruction, kind: str) -> None:
    """Translates ``cvt d, a, b`` to a packed type; ``a`` becomes the upper half."""
    d, a, b = ins.operands
    mode = next((part for part in ins.parts if part in _ROUND), "rn")
    if mode not in ("rn", "rz"):
        raise Unsupported(f"rounding .{mode}")
    function = f"pack_{kind[:-2]}_{mode}"
    low, high = w.use(b, "f"), w.use(a, "f")
    if "relu" in ins.parts:
        low, high = f"relu({low})", f"relu({high})"
    if "satfinite" in ins.parts:
        low, high = f"clamp_finite({low}, '{kind[:-2]}')", f"clamp_finite({high}, '{kind[:-2]}')"
    w.assign(d, "I", f"{function}({low}, {high})")


def _float_to_float(w: BlockWriter, ins: Instruction, to: str, source: str) -> None:
    expr = _as_float(w, ins, source)
    rounding = next((_INTEGER_ROUND[part] for part in ins.parts if part in _INTEGER_ROUND), None)
    mode = next((part for part in ins.parts if part in _ROUND), "rn")
    if rounding:
        expr = f"{rounding}({expr})"
    if "sat" in ins.parts:
        expr = f"saturate({expr})"
    if "relu" in ins.parts:
        expr = f"relu({expr})"
    if "satfinite" in ins.parts and to in ("f16", "bf16"):
        expr = f"clamp_finite({expr}, '{to}')"
    d = ins.operands[0]
    narrowing = to != source and TYPE_BITS[to] <= TYPE_BITS[source]
    if narrowing and mode not in ("rn", "rz", *_DIRECTED):
        raise Unsupported(f"rounding .{mode}")
    if to == "bf16" and mode in _DIRECTED:
        w.assign(d, "H", f"directed_bf16({expr}, '{mode}')")
    elif to == "bf16":
        w.assign(d, "H", f"wide_to_bf16({expr}, {mode == 'rz'})" if source == "f64" else _to_bf16(expr, mode))
    elif narrowing and mode == "rz":
        w.assign(d, code_of(to), f"narrow_toward_zero({expr}, '{code_of(to)}')")
    elif narrowing and mode in _DIRECTED:
        w.assign(d, code_of(to), f"narrow_directed({expr}, '{code_of(to)}', '{mode}')")
    elif to == source:
        w.assign(d, code_of(to), expr)
    else:
        w.assign(d, code_of(to), f"{expr}.astype('{code_of(to)}')")


def _to_bf16(expr: str, mode: str) -> str:
    return f"f32_to_bf16({expr}.astype('f'), {mode == 'rz'})"


def _fp8(w: BlockWriter, ins: Instruction) -> None:
    """Translates a conversion between a pair of 8-bit floats and two f32 (``a`` becomes the upper byte) or f16x2."""
    to, source = ins.parts[-2], ins.parts[-1]
    d, *sources = ins.operands
    relu = "relu" in ins.parts
    if to in _FP8 and source in ("f32", "f16x2"):
        allow(ins, "rn", ("satfinite", "relu"), _FP8, ("f32", "f16x2"))
        if source == "f32":
            high, low = (w.use(x, "f") for x in sources)
        else:
            low, high = (f"widen_f16({w.use(sources[0], 'I')}, {half})" for half in (0, 1))
        w.assign(d, "H", f"pack_fp8({low}, {high}, '{_FP8[to]}', {relu})")
    elif to == "f16x2" and source in _FP8:
        allow(ins, "rn", "relu", _FP8, "f16x2")
        w.assign(d, "I", f"unpack_fp8({w.use(sources[0], 'H')}, '{_FP8[source]}', {relu})")
    else:
        raise Unsupported(f"conversion .{to}.{source}")


def _to_tf32(w: BlockWriter, ins: Instruction) -> None:
    mode = ins.parts[1]
    if mode not in ("rn", "rna", "rz") or ins.parts[-1] != "f32":
        raise Unsupported("form of a conversion to .tf32")
    allow(ins, ("rn", "rna", "rz"), ("relu", "satfinite"), "tf32", "f32")
    options = f"relu={'relu' in ins.parts}, finite={'satfinite' in ins.parts}"
    w.assign(ins.operands[0], "I", f"to_tf32({w.use(ins.operands[1], 'f')}, '{mode}', {options})")


def _pack_integers(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``cvt.pack.sat.TYPE.s32``, with ``.b32`` and a third source for 8-bit elements."""
    kind = ins.parts[3]
    eight = kind in ("u8", "s8") and ins.parts[4:] == ("s32", "b32")
    if not eight and (kind not in ("u16", "s16") or ins.parts[4:] != ("s32",)):
        raise Unsupported("form of cvt.pack")
    d, high, low, *rest = ins.operands
    kept = w.use(rest[0], "I") if eight else None
    w.assign(d, "I", f"pack_saturated({w.use(high, 'i')}, {w.use(low, 'i')}, '{kind}', {kept})")


def _cvt(w: BlockWriter, ins: Instruction) -> None:
    if ins.parts[1] == "pack":
        _pack_integers(w, ins)
        return
    if {*ins.parts[-2:]} & _FP8.keys():
        _fp8(w, ins)
        return
    allow(ins, _TYPES, _ROUND, _INTEGER_ROUND, ("ftz", "sat", "satfinite", "relu"))
    to, source = ins.parts[-2], ins.parts[-1]
    if to in ("f16x2", "bf16x2") and source == "f32":
        _packed(w, ins, to)
    elif to == "tf32":
        _to_tf32(w, ins)
    elif to in _FLOATS and source in _FLOATS:
        _float_to_float(w, ins, to, source)
    elif source in _FLOATS:
        _float_to_int(w, ins, to, source)
    elif to in _FLOATS:
        _int_to_float(w, ins, to, source)
    elif to in TYPE_BITS and source in TYPE_BITS and "x2" not in to + source:
        value = w.use(ins.operands[1], code_of(source))
        code = code_of(to)
        if "sat" in ins.parts:
            value = f"clamp_int({value}, '{code}')"
        w.assign(ins.operands[0], code, value if code == code_of(source) else f"{value}.astype('{code}')")
    else:
        raise Unsupported(f"conversion .{to}.{source}")


def _float_to_int(w: BlockWriter, ins: Instruction, to: str, source: str) -> None:
    rounding = next((_INTEGER_ROUND[part] for part in ins.parts if part in _INTEGER_ROUND), None)
    if rounding is None:
        raise Unsupported("float to integer without a rounding mode")
    code = code_of(to)
    w.assign(ins.operands[0], code, f"float_to_int({rounding}({_as_float(w, ins, source)}), '{code}')")


def _int_to_float(w: BlockWriter, ins: Instruction, to: str, source: str) -> None:
    mode = next((part for part in ins.parts if part in _ROUND), "rn")
    value = w.use(ins.operands[1], code_of(source))
    if to == "bf16":
        if mode not in ("rn", "rz", *_DIRECTED):
            raise Unsupported(f"rounding .{mode}")
        directed = f"directed_bf16({value}, '{mode}')"
        w.assign(ins.operands[0], "H", directed if mode in _DIRECTED else f"wide_to_bf16({value}, {mode == 'rz'})")
        return
    code = code_of(to)
    if mode == "rn":
        expr = f"{value}.astype('{code}')"
    elif mode == "rz":
        expr = f"narrow_toward_zero({value}, '{code}')"
    elif mode in _DIRECTED:
        expr = f"narrow_directed({value}, '{code}', '{mode}')"
    else:
        raise Unsupported(f"rounding .{mode}")
    w.assign(ins.operands[0], code, expr)


HANDLERS: dict[str, Handler] = {"cvt": _cvt}
