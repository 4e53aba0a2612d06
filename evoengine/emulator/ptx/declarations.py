"""Parsing of declarations: variables with their initial bytes, kernel parameters, and integer literals."""

from __future__ import annotations

import re
import struct
from typing import Final

from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.ptx.records import TYPE_BITS, Param, Variable

_PARAM: Final = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr\S*(?:\s+\.(?:global|shared|const|local))?"
    r"(?:\s+\.align\s+\d+)?)?\s+([\w$%]+)(?:\[(\d+)\])?"
)
_VARIABLE: Final = re.compile(
    r"((?:\.(?:visible|extern|weak|common|attribute\([^)]*\))\s+)*)\.(global|const|shared|local)\s+"
    r"(?:\.align\s+(\d+)\s+)?(?:\.(v[24])\s+)?\.(\w+)\s+([\w$%]+)((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)


def malformed(line: int, text: str, detail: str) -> EmulatorError:
    """Error for a line that cannot be parsed."""
    return EmulatorError(Fault(FaultKind.MALFORMED_PTX, detail, ptx_line=line, ptx_text=" ".join(text.split())))


def parse_int(text: str) -> int:
    """Parses a PTX integer literal: decimal, hex, octal or binary, with an optional sign and ``U``."""
    body = text.strip().rstrip("U")
    negative = body.startswith("-")
    body = body.lstrip("-")
    octal = len(body) > 1 and body[0] == "0" and body[1] in "01234567"
    value = int(body, 8 if octal else 0)
    return -value if negative else value


def _initial_data(kind: str, text: str) -> bytes:
    values = [item.strip() for item in text.strip().strip("{}").replace("{", "").replace("}", "").split(",")]
    size = TYPE_BITS[kind] // 8
    data = b""
    for value in values:
        if value[:2] in ("0f", "0F", "0d", "0D"):
            data += int(value[2:], base=16).to_bytes(size, "little")  # noqa: FURB166 — the prefix is 0f or 0d
        elif kind in ("f32", "f64"):
            data += struct.pack("<f" if kind == "f32" else "<d", float(value))
        else:
            data += (parse_int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return data


def parse_variable(text: str, line: int) -> Variable | None:
    """Parses a variable declaration outside or inside an entry; None if the text is not one."""
    match = _VARIABLE.match(text.strip())
    if match is None:
        return None
    prefix, space, align, vector, kind, name, dims, initial = match.groups()
    if kind not in TYPE_BITS:
        raise malformed(line, text, f"unknown type .{kind}")
    element = TYPE_BITS[kind] // 8 * (int(vector[1]) if vector else 1)
    count = 1
    for dim in re.findall(r"\[(\d*)\]", dims):
        count *= int(dim or 0)
    size = element * count
    data = None
    if space in ("global", "const") and "extern" not in prefix:
        try:
            data = (_initial_data(kind, initial) if initial else b"").ljust(size, b"\0")
        except ValueError:
            raise malformed(line, text, "unsupported initial value") from None
    return Variable(space, name, int(align or element), size, data)


def parse_params(text: str, line: int) -> tuple[Param, ...]:
    """Parses the parameters of an entry and computes their offsets from their alignment.

    Args:
        text: List of parameters.
        line: Line number of its start.

    Raises:
        EmulatorError: A parameter has an unknown type or alignment.
    """
    params: list[Param] = []
    offset = 0
    for match in _PARAM.finditer(text):
        align_text, kind, name, count = match.groups()
        element = TYPE_BITS.get(kind, 0) // 8
        align = int(align_text or element)
        if not element or not align:
            at = line + text.count("\n", 0, match.start())
            raise malformed(at, match.group(), "unknown type or alignment of a parameter")
        size = element * int(count or 1)
        offset = (offset + align - 1) // align * align
        params.append(Param(name, align, size, offset, "" if count else kind))
        offset += size
    return tuple(params)


def module_variables(text: str) -> dict[str, Variable]:
    """Parses the variables that are declared outside entries, by name."""
    variables: dict[str, Variable] = {}
    pattern = re.compile(r"^[ \t]*((?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|const|shared)\s[^;]*);", re.M)
    for match in pattern.finditer(text):
        variable = parse_variable(match.group(1), text.count("\n", 0, match.start()) + 1)
        if variable is not None:
            variables[variable.name] = variable
    return variables
