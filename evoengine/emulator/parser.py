"""PTX text to :class:`~evoengine.emulator.ptx.Entry` records.

The grammar is that of the PTX ISA 9.0 manual, as far as NVRTC and inline assembly use it: module variables, entries
with ``.param`` lists, register declarations (ranges and names), scopes that shadow names, labels, ``.loc`` lines,
predicated instructions. Device functions (``.func``) are skipped; a ``call`` to one is reported when it is translated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from evoengine.emulator.declarations import malformed, module_variables, parse_int, parse_params, parse_variable
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.ptx import (
    TYPE_BITS,
    Entry,
    Imm,
    Instruction,
    Label,
    Mem,
    Operand,
    Pair,
    Param,
    Reg,
    Special,
    Sym,
    Variable,
    Vec,
)

_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LOC: Final = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+")
_FILE: Final = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_ENTRY: Final = re.compile(r"(?:\.visible\s+|\.weak\s+)*\.entry\s+([\w$%]+)")
_LABEL: Final = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INSTRUCTION: Final = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_OPERAND: Final = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s][^,]*")
_NUMBERED: Final = re.compile(r"(%[A-Za-z_]+)(\d+)$")
_NUMBER: Final = re.compile(
    r"-?(?:0[xX][0-9a-fA-F]+U?|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?)$"
)


def _is_plain(line: str) -> bool:
    """Whether a line is one whole instruction or directive: the common case, taken without further scanning."""
    if line[-1] != ";" or line.count(";") != 1 or line[0] in "{}$%_" or line[0].isupper():
        return False
    return ":" not in line or not _LABEL.match(line)


def _statements(body: str, first_line: int) -> Iterator[tuple[str, int]]:
    """Splits a body into statements: instructions and directives without ``;``, labels with ``:``, scopes ``{ }``."""
    pending, start = "", first_line
    for number, raw in enumerate(body.split("\n"), first_line):
        line = raw.strip()
        if not line:
            continue
        if not pending and _is_plain(line):
            yield line[:-1], number
            continue
        if not pending and line.startswith((".loc ", ".loc\t", ".file")):
            yield line, number
            continue
        if not pending:
            start = number
        pending = f"{pending} {line}".lstrip()
        while pending:
            label = _LABEL.match(pending)
            if pending[0] in "{}":
                yield pending[0], start
                pending = pending[1:].lstrip()
            elif label:
                yield label.group(1) + ":", start
                pending = pending[label.end() :].lstrip()
            elif ";" in pending:
                statement, _, pending = pending.partition(";")
                pending = pending.lstrip()
                if statement.strip():
                    yield statement.strip(), start
            else:
                break


class _BodyParser:
    """Parses the statements of one entry."""

    def __init__(self, module_variables: dict[str, Variable], params: tuple[Param, ...]) -> None:
        self.variables = dict(module_variables)
        self.params = {p.name for p in params}
        self.register_types: list[str] = []
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self._scopes: list[dict[str, Reg]] = [{}]
        self._ranges: dict[str, str] = {}
        self._operand_cache: dict[str, Operand] = {}
        self._opcode_cache: dict[str, tuple[str, ...]] = {}
        self._source: tuple[int, int] | None = None
        self._last_label = ""

    def run(self, body: str, first_line: int) -> None:
        for text, line in _statements(body, first_line):
            self._statement(text, line)

    def _statement(self, text: str, line: int) -> None:
        if text == "{":
            self._scopes.append({})
            self._operand_cache = {}
        elif text == "}":
            if len(self._scopes) > 1:
                self._scopes.pop()
            self._operand_cache = {}
        elif text[-1] == ":":
            self._last_label = text[:-1]
            self.labels[self._last_label] = len(self.instructions)
        elif text[0] == ".":
            self._directive(text, line)
        else:
            self._instruction(text, line)

    def _directive(self, text: str, line: int) -> None:
        if text.startswith((".loc ", ".loc\t")):
            match = _LOC.match(text)
            if match:
                self._source = (int(match.group(1)), int(match.group(2)))
        elif text.startswith(".reg"):
            self._declare_registers(text, line)
        elif text.startswith(".branchtargets"):
            names = text[len(".branchtargets") :].split(",")
            self.branch_targets[self._last_label] = tuple(name.strip() for name in names)
        elif text.startswith((".pragma", ".file")):
            return
        else:
            variable = parse_variable(text, line)
            if variable is None:
                raise malformed(line, text, "unknown directive")
            self.variables[variable.name] = variable
            self._operand_cache = {}

    def _declare_registers(self, text: str, line: int) -> None:
        fields = text.split(None, 2)
        if len(fields) != 3 or fields[1][1:] not in TYPE_BITS:
            raise malformed(line, text, "unknown register declaration")
        kind = fields[1][1:]
        for name in fields[2].split(","):
            stem = name.strip()
            if stem.endswith(">"):
                self._ranges[stem[: stem.index("<")]] = kind
            else:
                self._scopes[-1][stem] = self._new_register(kind)
        self._operand_cache = {}

    def _new_register(self, kind: str) -> Reg:
        self.register_types.append(kind)
        return Reg(len(self.register_types) - 1)

    def _register(self, name: str) -> Reg | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        match = _NUMBERED.match(name)
        if match and match.group(1) in self._ranges:
            register = self._new_register(self._ranges[match.group(1)])
            self._scopes[0][name] = register
            return register
        return None

    def _instruction(self, text: str, line: int) -> None:
        match = _INSTRUCTION.match(text)
        if match is None:
            raise malformed(line, text, "not an instruction")
        negate, guard, opcode, rest = match.groups()
        predicate = None
        if guard:
            register = self._register(guard)
            if register is None:
                raise malformed(line, text, f"unknown predicate {guard}")
            predicate = Reg(register.index, bool(negate))
        parts = self._opcode_cache.get(opcode)
        if parts is None:
            parts = self._opcode_cache[opcode] = tuple(opcode.split("."))
        operands: list[Operand] = []
        if rest:
            pieces = _OPERAND.findall(rest) if "{" in rest or "[" in rest or "(" in rest else rest.split(",")
            cache = self._operand_cache
            for piece in pieces:
                if piece in cache:
                    operands.append(cache[piece])
                else:
                    operand = cache[piece] = self._operand(piece.strip(), line)
                    operands.append(operand)
        self.instructions.append(Instruction(parts, tuple(operands), predicate, line, self._source))

    def _operand(self, text: str, line: int) -> Operand:
        if not text:
            raise malformed(line, text, "empty operand")
        head = text[0]
        if head == "[":
            return self._memory(text[1:-1].strip(), line)
        if head == "{":
            return Vec(tuple(self._scalar(item.strip(), line) for item in text[1:-1].split(",")))
        if "|" in text:
            first, second = (self._scalar(item.strip(), line) for item in text.split("|"))
            if not isinstance(first, Reg | None) or not isinstance(second, Reg | None):
                raise malformed(line, text, "a destination pair must hold registers")
            return Pair(first, second)
        if _NUMBER.match(text):
            return Imm(text)
        if head == "!":
            register = self._register(text[1:].strip())
            if register is None:
                raise malformed(line, text, "unknown predicate")
            return Reg(register.index, True)
        return None if text == "_" else self._name(text)

    def _name(self, text: str) -> Operand:
        """A register, special register, variable or label."""
        register = self._register(text)
        if register is not None:
            return register
        if text[0] == "%":
            return Special(text)
        name, _, offset = text.partition("+")
        if name.strip() in self.variables or name.strip() in self.params:
            return Sym(name.strip(), parse_int(offset) if offset else 0)
        return Label(text)

    def _scalar(self, text: str, line: int) -> Reg | Imm | Special | None:
        operand = self._operand(text, line)
        if isinstance(operand, Reg | Imm | Special | None):
            return operand
        raise malformed(line, text, "a vector or pair element must be a register or a literal")

    def _memory(self, text: str, line: int) -> Mem:
        base, sign, offset = text.partition("+")
        if not sign and "-" in base[1:]:
            base, _, offset = text.partition("-")
            offset = "-" + offset
        operand = self._operand(base.strip(), line)
        bytes_off = parse_int(offset.replace(" ", "")) if offset else 0
        if isinstance(operand, Reg | Sym | Imm):
            return Mem(operand, bytes_off)
        raise malformed(line, text, "unknown address")


def _matching_brace(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    raise malformed(text.count("\n", 0, start) + 1, text[start : start + 40], "unbalanced braces")


def parse(ptx: str, entry: str | None = None) -> Entry:
    """Parses one entry of a PTX module.

    Args:
        ptx: The text, as ``nvrtcGetPTX`` gives it.
        entry: Name of the entry; may be None where the module has exactly one.

    Raises:
        EmulatorError: the text is malformed, or the entry is missing or ambiguous.
    """
    text = _COMMENT.sub(lambda m: "\n" * m.group().count("\n"), ptx)
    entries = {m.group(1): m for m in _ENTRY.finditer(text)}
    if entry is None:
        if len(entries) != 1:
            raise EmulatorError(
                Fault(FaultKind.BAD_LAUNCH, f"name one of the entries: {', '.join(entries) or 'none found'}")
            )
        entry = next(iter(entries))
    if entry not in entries:
        raise EmulatorError(Fault(FaultKind.BAD_LAUNCH, f"no entry '{entry}' in the PTX, it has: {', '.join(entries)}"))
    match = entries[entry]
    open_brace = text.index("{", match.end())
    head = text[match.end() : open_brace]
    params = parse_params(head)
    close_brace = _matching_brace(text, open_brace)
    body = _BodyParser(module_variables(text), params)
    body.run(text[open_brace + 1 : close_brace], text.count("\n", 0, open_brace + 1) + 1)
    return Entry(
        name=entry,
        params=params,
        instructions=tuple(body.instructions),
        labels=body.labels,
        branch_targets=body.branch_targets,
        register_types=tuple(body.register_types),
        variables=body.variables,
        files={int(m.group(1)): m.group(2) for m in _FILE.finditer(text)},
        text_lines=tuple(ptx.split("\n")),
    )
