"""Parser from PTX text to :class:`~evoengine.emulator.ptx.records.Entry` records.

The grammar is the part of the PTX ISA 9.0 manual that NVRTC and inline assembly use: module variables, entries with
``.param`` lists, register declarations (ranges and names), nested scopes, labels, ``.loc`` lines, and predicated
instructions. Device functions (``.func``) are inlined at each call.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.ptx.compared_loads import with_volatile_guesses
from evoengine.emulator.ptx.declarations import malformed, module_variables, parse_int, parse_params, parse_variable
from evoengine.emulator.ptx.device_functions import ASSERT, Function, FunctionCall, find_functions, parse_call
from evoengine.emulator.ptx.label_scopes import renamed
from evoengine.emulator.ptx.records import (
    TYPE_BITS,
    Box,
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
from evoengine.emulator.ptx.register_scopes import Binding, Frame

_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LOC: Final = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+\d+"
    r"(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?\s*"
)
_FILE: Final = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_ENTRY: Final = re.compile(r"\.entry\s+([\w$%]+)")
_INSTRUCTION: Final = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_OPERAND: Final = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s][^,]*")
_REGISTERS: Final = re.compile(r"\.reg\s*\.(\w+)\s+(.*)$", re.S)
_NUMBER: Final = re.compile(
    r"-?(?:0[xX][0-9a-fA-F]+U?|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?|(?:0|[1-9]\d*)U?)$"
)
"""Literals; not octal ones, which other languages read as decimal."""

_CONSTANTS: Final = {"WARP_SZ": "32"}
"""Predefined constants of PTX; shuffles of ``cuda_fp16.h`` use this one."""
_LIMIT: Final = re.compile(r"\.(maxnreg|maxntid|reqntid|reqnctapercluster|minnctapersm)\s+(\d+(?:\s*,\s*\d+)*)")
_LABEL: Final = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_NOT_PLAIN: Final = frozenset("{}$%_" + string.ascii_uppercase)
"""First characters of lines that may be something other than one whole instruction or directive."""


class _BodyParser:
    """Parses the statements of one entry."""

    def __init__(
        self,
        module_variables: dict[str, Variable],
        params: tuple[Param, ...],
        functions: Mapping[str, tuple[Function, str, int]],
        *,
        unique_labels: bool,
    ) -> None:
        self.variables = dict(module_variables)
        self.params = {p.name for p in params}
        self.register_types: list[str] = []
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.referenced: set[str] = set()
        self._functions = functions
        self._frame = Frame(self.register_types, unique_labels=unique_labels)
        self._callers: list[Frame] = []
        self._call_registers: set[int] = set()
        """Registers that hold parameters and results of calls."""
        self._calls = 0
        self._opcode_cache: dict[str, tuple[str, ...]] = {}
        self._source: tuple[int, int] | None = None

    def run(self, body: str, first_line: int) -> None:
        for text, line in _split_statements(body, first_line):
            self._statement(text, line)

    def _statement(self, text: str, line: int) -> None:
        frame = self._frame
        if text == "{":
            frame.enter()
            frame.labels.enter(len(self.instructions))
        elif text == "}":
            frame.leave()
            self._bind_labels(*frame.labels.leave())
        elif text[-1] == ":":
            self._label(frame, text, line)
        elif text[0] == ".":
            self._directive(text, line)
        else:
            self._instruction(text, line)

    def _label(self, frame: Frame, text: str, line: int) -> None:
        try:
            frame.last_label = frame.labels.declare(frame.prefix + text[:-1])
        except ValueError:
            raise malformed(line, text, "a label that another scope has too: give each its own name") from None
        self.labels[frame.last_label] = len(self.instructions)

    def _bind_labels(self, start: int, names: Mapping[str, str]) -> None:
        """Directs the branches of a scope, the instructions from ``start`` on, to its own labels."""
        if names:
            self.instructions[start:] = [renamed(ins, names) for ins in self.instructions[start:]]
            for label, targets in self.branch_targets.items():
                self.branch_targets[label] = tuple(names.get(target, target) for target in targets)

    def _directive(self, text: str, line: int) -> None:
        frame = self._frame
        if text.startswith((".loc ", ".loc\t")):
            match = _LOC.fullmatch(text)
            if match is None:
                raise malformed(line, text, "unknown form of a source location")
            self._source = (int(match.group(1)), int(match.group(2)))
        elif text.startswith(".reg"):
            self._declare_registers(text, line)
        elif text.startswith(".branchtargets"):
            names = text[len(".branchtargets") :].split(",")
            self.branch_targets[frame.last_label] = tuple(frame.prefix + name.strip() for name in names)
        elif text.startswith(".param"):
            self._declare_call_param(text, line)
        elif not text.startswith((".pragma", ".file", ".callprototype", ".calltargets")):
            variable = parse_variable(text, line)
            if variable is None:
                raise malformed(line, text, "unknown directive")
            self._add_variable(variable)

    def _add_variable(self, variable: Variable) -> None:
        name = self._frame.prefix + variable.name
        if name in self.variables:  # of another scope
            name = f"{name}@{len(self.variables)}"
        self.variables[name] = replace(variable, name=name)
        self._frame.bind(variable.name, name)

    def _declare_registers(self, text: str, line: int) -> None:
        match = _REGISTERS.match(text)
        if match is None or match.group(1) not in TYPE_BITS:
            raise malformed(line, text, "unknown register declaration")
        kind, names = match.groups()
        if kind == "b128":
            raise malformed(line, text, "registers of 128 bits are not supported")
        for name in names.split(","):
            stem = name.strip()
            if stem.endswith(">"):
                first, _, count = stem[:-1].partition("<")
                self._frame.declare_range(first.rstrip(), kind, _integer(count, line, "a number of registers"))
            else:
                self._frame.declare(stem, kind)

    def _declare_call_param(self, text: str, line: int) -> None:
        """Declares a ``.param`` in a body, which passes values to or from a call.

        A scalar becomes a register, a structure becomes a local variable.
        """
        params = parse_params(text, line)
        if len(params) != 1:
            raise malformed(line, text, "unknown parameter declaration")
        param = params[0]
        if "[" in text:
            self._calls += 1
            name = f"{param.name}@{self._calls}"
            self.variables[name] = Variable("local", name, param.align, param.size)
            self._frame.bind(param.name, name)
        else:
            self._call_registers.add(self._frame.declare(param.name, f"b{8 * param.size}").index)

    def _instruction(self, text: str, line: int) -> None:
        opcode, *others = text.split(None, 1)
        rest = others[0] if others else ""
        parts = self._opcode_cache.get(opcode)
        predicate = None
        if parts is None:  # a new opcode, or a guard
            match = _INSTRUCTION.match(text)
            if match is None:
                raise malformed(line, text, "not an instruction")
            negate, guard, opcode, rest = match.groups()
            if guard:
                register = self._frame.register(guard)
                if register is None:
                    raise malformed(line, text, f"unknown predicate {guard}")
                predicate = Reg(register.index, bool(negate))
            parts = self._opcode_cache.get(opcode)
            if parts is None:
                parts = self._opcode_cache[opcode] = tuple(opcode.split("."))
        if parts[0] == "call":
            self._call(parts, rest, predicate, line)
            return
        operands = self._operands(rest, line) if rest else []
        if len(parts) > 1 and parts[1] == "param":
            parts = self._rewrite_param_access(parts, operands)
        elif parts[0] == "ret" and self._callers:
            parts, operands = ("bra",), [Label(self._frame.prefix)]
        if parts[0] in ("bar", "barrier") and "red" in parts:
            self._vote(parts, operands, predicate, line)
        else:
            self.instructions.append(Instruction(parts, tuple(operands), predicate, line, self._source))

    def _operands(self, text: str, line: int) -> list[Operand]:
        if "{" in text or "[" in text or "(" in text:
            pieces = _OPERAND.findall(text)
        else:
            pieces = text.split(", ")
            if text.count(",") >= len(pieces):
                pieces = text.split(",")
        operands: list[Operand] = []
        cache = self._frame.operands
        for piece in pieces:
            if piece in cache:
                operands.append(cache[piece])
            else:
                operand = cache[piece] = self._operand(piece.strip(), line)
                operands.append(operand)
        return operands

    def _vote(self, parts: tuple[str, ...], operands: list[Operand], predicate: Reg | None, line: int) -> None:
        """Replaces ``bar.red`` by three instructions: record the predicate, barrier, read the result.

        See :class:`~evoengine.emulator.batch.barrier_votes.BarrierVotes`.
        """
        operation = next((part for part in parts if part in ("popc", "and", "or")), "")
        if not operation or len(operands) not in (3, 4):
            raise malformed(line, ".".join(parts), "unknown form of a barrier reduction")
        result, number, *count, vote = operands
        self._add(("barrier_note", operation), (number, vote), predicate, line)
        aligned = ("aligned",) if "aligned" in parts else ()
        self._add((parts[0], "sync", *aligned), (number, *count), predicate, line)
        self._add(("barrier_look", operation), (result, number), predicate, line)

    def _add(self, parts: tuple[str, ...], operands: Sequence[Operand], predicate: Reg | None, line: int) -> None:
        self.instructions.append(Instruction(parts, tuple(operands), predicate, line, self._source))

    def _rewrite_param_access(self, parts: tuple[str, ...], operands: list[Operand]) -> tuple[str, ...]:
        """Opcode of a load or store of a call's parameter: a move, or an access to local memory.

        Replaces the memory operand in ``operands`` by the register of the parameter, if it has one.
        """
        for number, operand in enumerate(operands):
            if isinstance(operand, Mem):
                if isinstance(operand.base, Reg) and operand.base.index in self._call_registers:
                    operands[number] = operand.base
                    return ("mov", parts[-1])
                if isinstance(operand.base, Sym) and operand.base.name in self.variables:
                    return (parts[0], "local", *parts[2:])
        return parts

    def _call(self, parts: tuple[str, ...], rest: str, predicate: Reg | None, line: int) -> None:
        """Inlines the body of a device function.

        A call that cannot be inlined stays a ``call``, which the translator reports as unsupported.
        """
        call = parse_call(rest)
        function, body, first_line = self._functions.get(call.name if call else "", (None, "", 0))
        bindings = self._parameter_bindings(call, function) if call and function else None
        if function is None or bindings is None or self._is_active(function):
            asserts = call is not None and call.name == ASSERT
            callee = (Label(call.name),) if call is not None else ()
            self._add(*((("trap",), ()) if asserts else (parts, callee)), predicate, line)
            return
        self._calls += 1
        end = f"{function.name}@{self._calls}:"
        if predicate is not None:
            self._add(("bra",), (Label(end),), Reg(predicate.index, not predicate.invert), line)
        source = self._source
        self._callers.append(self._frame)
        self._frame = Frame(self.register_types, function.name, end, bindings)
        self.run(body, first_line)
        self._frame = self._callers.pop()
        self._source = source
        self.labels[end] = len(self.instructions)

    def _is_active(self, function: Function) -> bool:
        return any(frame.function == function.name for frame in (*self._callers, self._frame))

    def _parameter_bindings(self, call: FunctionCall, function: Function) -> dict[str, Binding] | None:
        """Bindings of the function's results and parameters; None if the call does not match the function."""
        formal = [param.name for param in (*function.results, *function.params)]
        actual = [self._frame.find(name) for name in (*call.results, *call.arguments)]
        bindings = {name: binding for name, binding in zip(formal, actual, strict=False) if binding is not None}
        return bindings if len(bindings) == len(formal) == len(actual) else None

    def _operand(self, text: str, line: int) -> Operand:
        if not text:
            raise malformed(line, text, "empty operand")
        head = text[0]
        if head == "%":
            register = self._frame.find(text)
            if isinstance(register, Reg):
                return register
        if head == "[":
            inner = text[1:-1].strip()
            return self._box(inner, line) if "{" in inner else self._memory(inner, line)
        if head == "{":
            return Vec(tuple(self._scalar(item.strip(), line) for item in text[1:-1].split(",")))
        if "|" in text:
            first, second = (self._scalar(item.strip(), line) for item in text.split("|"))
            if not isinstance(first, Reg | None) or not isinstance(second, Reg | None):
                raise malformed(line, text, "a destination pair must hold registers")
            return Pair(first, second)
        if _NUMBER.match(text):
            return Imm(text)
        if head in string.digits:
            raise malformed(line, text, "unknown form of a literal")
        if head == "!":
            register = self._frame.register(text[1:].strip())
            if register is None:
                raise malformed(line, text, "unknown predicate")
            return Reg(register.index, True)
        return None if text == "_" else self._name(text, line)

    def _name(self, text: str, line: int) -> Operand:
        """Operand that a name stands for: a register, special register, constant, variable or label."""
        found = self._frame.find(text)
        if isinstance(found, Reg):
            return found
        if text[0] == "%" and found is None:
            return Special(text)
        if text in _CONSTANTS:
            return Imm(_CONSTANTS[text])
        name, _, offset = text.partition("+")
        binding = self._frame.find(name.strip())
        symbol = binding if isinstance(binding, str) else name.strip()
        if symbol in self.variables or symbol in self.params:
            self.referenced.add(symbol)
            return Sym(symbol, _offset(offset, line))
        return Label(self._frame.prefix + text)

    def _scalar(self, text: str, line: int) -> Reg | Imm | Special | None:
        operand = self._operand(text, line)
        if isinstance(operand, Reg | Imm | Special | None):
            return operand
        raise malformed(line, text, "a vector or pair element must be a register or a literal")

    def _box(self, text: str, line: int) -> Box:
        """Operand ``map, {coordinates}``."""
        head, _, rest = text.partition(",")
        rest = rest.strip()
        if rest[:1] != "{" or rest[-1:] != "}" or "{" in rest[1:]:
            raise malformed(line, text, "unknown form of a tensor operand")
        return Box(
            self._memory(head.strip(), line), tuple(self._scalar(item.strip(), line) for item in rest[1:-1].split(","))
        )

    def _memory(self, text: str, line: int) -> Mem:
        base, sign, offset = text.partition("+")
        if not sign and "-" in base[1:]:
            base, _, offset = text.partition("-")
            offset = "-" + offset
        operand = self._operand(base.strip(), line)
        if isinstance(operand, Reg | Sym | Imm):
            return Mem(operand, _offset(offset, line))
        raise malformed(line, text, "unknown address")


def _offset(text: str, line: int) -> int:
    """Distance behind a base, in bytes; 0 for no text."""
    return _integer(text.replace(" ", ""), line, "an offset") if text else 0


def _integer(text: str, line: int, what: str) -> int:
    try:
        return parse_int(text)
    except ValueError:
        raise malformed(line, text, f"unknown form of {what}") from None


def _split_statements(body: str, first_line: int) -> Iterator[tuple[str, int]]:
    """Splits a body into instructions and directives without ``;``, labels with ``:``, and the braces of scopes.

    Yields each statement with its line number in the PTX.
    """
    pending, start = "", first_line
    for number, raw in enumerate(body.split("\n"), first_line):
        line = raw.strip()
        if not line:
            continue
        plain = line[0] not in _NOT_PLAIN and line.find(";") == len(line) - 1 > 0
        if plain and not pending and (":" not in line or not _LABEL.match(line)):  # fast path: one statement
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


def _matching_brace(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    raise malformed(text.count("\n", 0, start) + 1, text[start : start + 40], "unbalanced braces")


def _body(text: str, brace: int) -> tuple[str, int]:
    """Text between an opening brace and the matching one, and the line number of its start."""
    return text[brace + 1 : _matching_brace(text, brace)], text.count("\n", 0, brace + 1) + 1


def _outside(text: str, starts: Sequence[int]) -> str:
    """Text without the bodies that begin at these braces; only their line breaks stay."""
    parts, at = [], 0
    for start in sorted(starts):
        end = _matching_brace(text, start)
        parts += [text[at:start], "\n" * text.count("\n", start, end)]
        at = end + 1
    return "".join((*parts, text[at:]))


def _open_brace(text: str, declared: re.Match[str]) -> int:
    """Position of the brace that begins the body of an entry."""
    brace = text.find("{", declared.end())
    if brace < 0:
        raise malformed(text.count("\n", 0, declared.start()) + 1, declared.group(), "an entry without a body")
    return brace


def parse(ptx: str, entry: str | None = None, *, unique_labels: bool = False) -> Entry:
    """Parses one entry of a PTX module.

    Args:
        ptx: PTX text, as ``nvrtcGetPTX`` returns it.
        entry: Name of the entry. None selects the only entry of the module.
        unique_labels: Whether to refuse a label that two scopes have, even if they lie beside each other.

    Raises:
        EmulatorError: The text is malformed, or the entry is missing or ambiguous.
    """
    text = _COMMENT.sub(lambda m: "\n" * m.group().count("\n"), ptx)
    entries = {m.group(1): m for m in _ENTRY.finditer(text)}
    if entry is None:
        if len(entries) != 1:
            detail = f"name one of the entries: {', '.join(entries)}" if entries else "the PTX has no entry"
            raise EmulatorError(Fault(FaultKind.BAD_LAUNCH, detail))
        entry = next(iter(entries))
    if entry not in entries:
        raise EmulatorError(Fault(FaultKind.BAD_LAUNCH, f"no entry '{entry}' in the PTX, it has: {', '.join(entries)}"))
    match = entries[entry]
    open_brace = _open_brace(text, match)
    head = text[match.end() : open_brace]
    params = parse_params(head, text.count("\n", 0, match.end()) + 1)
    functions = {function.name: (function, *_body(text, function.start)) for function in find_functions(text)}
    starts = [open_brace, *(_open_brace(text, m) for name, m in entries.items() if name != entry)]
    starts += [function.start for function, _, _ in functions.values()]
    variables = module_variables(_outside(text, starts))
    body = _BodyParser(variables, params, functions, unique_labels=unique_labels)
    body.run(*_body(text, open_brace))
    if not body.instructions:
        raise malformed(text.count("\n", 0, match.start()) + 1, match.group(), "an entry without instructions")
    return Entry(
        name=entry,
        params=params,
        instructions=with_volatile_guesses(body.instructions),
        labels=body.labels,
        branch_targets=body.branch_targets,
        register_types=tuple(body.register_types),
        variables=body.variables,
        referenced=frozenset(body.referenced),
        files={int(m.group(1)): m.group(2) for m in _FILE.finditer(text)},
        text_lines=tuple(ptx.split("\n")),
        limits={name: tuple(int(number) for number in numbers.split(",")) for name, numbers in _LIMIT.findall(head)},
    )
