"""Code generation: writes the Python function of one basic block.

Every register is a Python local that holds an array; :mod:`evoengine.emulator.arrays` states shapes and dtype codes. A
register may have names for several dtypes (``r7_I`` and ``r7_f`` are views of the same bits), so that each view is
created once. Arrays are never written in place, so ``mov`` only creates an alias.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from evoengine.emulator.arrays import CODE_BITS, SIGNED, UNSIGNED
from evoengine.emulator.ptx.control_flow import Block, ControlFlow
from evoengine.emulator.ptx.declarations import parse_int
from evoengine.emulator.ptx.records import TYPE_BITS, Entry, Imm, Instruction, Label, Operand, Reg, Special, Sym

_TICKING = ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")
"""Special registers whose value grows with every read."""
_FLOAT = {"f16": "e", "f32": "f", "f64": "d"}


class Unsupported(Exception):
    """The translator does not support this instruction or one of its modifiers."""


def code_of(kind: str) -> str:
    """Dtype code of a PTX type; packed types and bf16 are unsigned integers."""
    if kind in _FLOAT:
        return _FLOAT[kind]
    bits = TYPE_BITS[kind]
    return SIGNED[bits] if kind[0] == "s" else UNSIGNED[bits]


def _immediate_bits(text: str, code: str) -> int:
    """Bits of a literal in the given dtype.

    Raises:
        Unsupported: A floating-point literal for an integer dtype.
    """
    bits = CODE_BITS[code]
    head = text[:2]
    if head in ("0f", "0F", "0d", "0D"):
        raw = int(text[2:], base=16)  # noqa: FURB166 — the prefix is 0f or 0d
        if head in ("0f", "0F") and code == "d":
            return int(np.float64(np.uint32(raw).view(np.float32)).view(np.uint64))
        if head in ("0d", "0D") and code == "f":
            return int(np.float32(np.uint64(raw).view(np.float64)).view(np.uint32))
        return raw & ((1 << bits) - 1)
    if "." in text or code in "fde":
        pattern = {"f": "<f", "d": "<d", "e": "<e"}.get(code)
        if pattern is None:
            raise Unsupported(f"floating-point literal {text} for an integer")
        return int.from_bytes(struct.pack(pattern, float(text.rstrip("U"))), "little")
    return parse_int(text) & ((1 << bits) - 1)


class ProgramContext(Protocol):
    """Interface of a program to the translation of its blocks."""

    entry: Entry
    flow: ControlFlow
    canonical: list[str]
    """Dtype code that each register is stored in between blocks."""
    uses: list[int]
    """Number of operands that read each register."""

    def constant(self, value: int, code: str) -> str:
        """Name of a ``[1, 1]`` array with these bits."""

    def numbers(self, registers: tuple[int, ...]) -> str:
        """Name of a tuple with these register indices."""

    def reader(self, registers: tuple[int, ...]) -> str:
        """Name of a function that returns the values of several registers from the register file."""

    def symbol_address(self, symbol: Sym, code: str) -> str:
        """Expression for the address of a variable."""

    def address_of(self, symbol: Sym) -> int:
        """Offset of a variable or parameter in its state space: shared, local or param."""

    def special_attribute(self, name: str) -> str:
        """Name of the attribute of the batch that holds a special register."""

    def is_live_across_blocks(self, index: int) -> bool:
        """Whether the value of a register is stored in the register file at the end of its block."""


class BlockWriter:
    """Collects the statements of one block.

    In the generated function ``R`` is the register file, ``X`` the batch and ``m`` the mask of the lanes that run the
    block, None for all. Each name is assigned only once, so that an expression keeps its value wherever it is used.
    """

    def __init__(self, program: ProgramContext, block: Block) -> None:
        self.program = program
        self.block = block
        self.lines: list[str] = []
        self.known: dict[int, dict[str, str]] = {}
        """Names of each register's current value, by dtype code."""
        self.loaded: dict[int, str] = {}
        """Names of the values that the block reads from the register file."""
        self.written: dict[int, None] = {}
        """Registers that the block writes; a dict because it keeps their order."""
        self.fragments: set[str] = set()
        """Names of values that are a whole matrix fragment."""
        self.site = block.start
        self.ins: Instruction = program.entry.instructions[block.start]
        self.before_use: Callable[[int], None] | None = None
        self.before_write: Callable[[int], None] | None = None
        self._temp = 0
        self._names: set[str] = set()
        self._whole_warps = False
        self._guard_name: str | None = None

    # --- values -------------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        """Adds one statement."""
        self.lines.append(line)

    def temp(self, expr: str) -> str:
        """Assigns an expression to a new local and returns its name."""
        self._temp += 1
        name = f"t{self._temp}"
        self.lines.append(f"{name} = {expr}")
        return name

    def require_warps(self) -> None:
        """Emits a check that whole warps execute a tensor instruction; once per block where it has no guard."""
        if self.guard() is not None:
            self.emit(f"require_whole_warps(X, {self.mask()}, {self.site})")
        elif not self._whole_warps:
            self._whole_warps = True
            self.emit(f"if m is not None: require_whole_warps(X, m, {self.site})")

    def constant(self, value: int, code: str) -> str:
        """Name of a ``[1, 1]`` array with these bits."""
        return self.program.constant(value, code)

    def use(self, operand: Operand, code: str) -> str:
        """Expression for the value of an operand in the given dtype."""
        if isinstance(operand, Reg):
            return self._use_register(operand, code)
        if isinstance(operand, Imm):
            return self.constant(_immediate_bits(operand.text, code), code)
        if isinstance(operand, Special):
            return self.special(operand.name, code)
        if isinstance(operand, Sym):
            return self.program.symbol_address(operand, code)
        if isinstance(operand, Label):
            raise Unsupported(f"address of {operand.name}: calls through pointers are not supported")
        raise Unsupported(f"operand {operand}")

    def _use_register(self, reg: Reg, code: str) -> str:
        index = reg.index
        if self.before_use is not None:
            self.before_use(index)
        names = self.known.get(index)
        canonical = self.program.canonical[index]
        if names is None:
            name = self.loaded[index] = self._fresh(index, canonical)
            names = self.known[index] = {canonical: name}
        found = names.get(code)
        if found is None:
            found = self._convert(index, names, code)
        if reg.invert:
            return f"(~{found})"
        return found

    def _fresh(self, index: int, code: str) -> str:
        """A new name for the value of a register."""
        name = f"r{index}_{code}"
        if name in self._names:
            name = f"{name}{len(self._names)}"
        self._names.add(name)
        return name

    def _convert(self, index: int, names: dict[str, str], code: str) -> str:
        have, name = next(iter(names.items()))
        have_bits, want_bits = CODE_BITS[have], CODE_BITS[code]
        if "p" in (have, code):
            raise Unsupported("predicate instead of a value, or value instead of a predicate")
        new = self._fresh(index, code)
        if have_bits == want_bits:
            expr = f"{name}.view('{code}')"
        elif have_bits > want_bits:
            raw = name if have in "BHIQ" else f"{name}.view('{UNSIGNED[have_bits]}')"
            expr = f"{raw}.astype('{UNSIGNED[want_bits]}')"
            if code not in "BHIQ":
                expr += f".view('{code}')"
        else:
            raise Unsupported(f"{have_bits}-bit register instead of {want_bits} bits")
        self.lines.append(f"{new} = {expr}")
        names[code] = new
        return new

    def special(self, name: str, code: str) -> str:
        """Expression for a special register."""
        attribute = self.program.special_attribute(name)
        native = "Q" if name in ("%clock64", "%globaltimer", "%gridid") else "I"
        expr = f"X.{attribute}" + ("()" if name in _TICKING else "")
        if code == native:
            return expr
        if CODE_BITS[code] == CODE_BITS[native]:
            return f"{expr}.view('{code}')"
        return f"{expr}.astype('{code}')"

    def assign(self, operand: Operand, code: str, expr: str) -> None:
        """Assigns to a destination; extends to the register's width and keeps the old value of guarded-off lanes."""
        if operand is None:
            return
        if not isinstance(operand, Reg):
            raise Unsupported(f"destination {operand}")
        index = operand.index
        if self.before_write is not None:
            self.before_write(index)
        width = CODE_BITS[self.program.canonical[index]]
        if width > CODE_BITS[code]:
            wide = {"b": SIGNED, "h": SIGNED, "i": SIGNED}.get(code, UNSIGNED)[width]
            raw = f"({expr}).view('{UNSIGNED[CODE_BITS[code]]}')" if code in "efd" else f"({expr})"
            expr, code = f"{raw}.astype('{wide}')", wide
        elif width < CODE_BITS[code]:
            raise Unsupported("destination register is too narrow")
        guard = self.guard()
        if guard is not None:
            old = self._use_register(Reg(index), code)
            expr = f"where({guard}, {expr}, {old})"
        name = self._fresh(index, code)
        self.lines.append(f"{name} = {expr}")
        self.known[index] = {code: name}
        self.written[index] = None

    def bind(self, operands: Sequence[Operand], code: str, value: str) -> None:
        """Assigns the elements of one value to destinations; each element is evaluated only when it is read.

        Args:
            operands: Destinations, one per element.
            code: Dtype code of the elements, as wide as the registers.
            value: Name of the value.
        """
        for number, operand in enumerate(operands):
            element = f"{value}[{number}]"
            plain = isinstance(operand, Reg) and CODE_BITS[self.program.canonical[operand.index]] == CODE_BITS[code]
            if not plain or self.ins.predicate is not None:
                self.assign(operand, code, element)
                continue
            assert isinstance(operand, Reg)
            if self.before_write is not None:
                self.before_write(operand.index)
            self.known[operand.index] = {code: element}
            self.written[operand.index] = None

    def alias(self, operand: Operand, source: Operand, code: str) -> None:
        """Executes ``mov``: binds the destination to the array of the source."""
        value = self.use(source, code)
        if (
            not isinstance(operand, Reg)
            or not isinstance(source, Reg)
            or source.invert
            or self.ins.predicate is not None
            or CODE_BITS[self.program.canonical[operand.index]] != CODE_BITS[code]
        ):
            self.assign(operand, code, value)
            return
        if self.before_write is not None:
            self.before_write(operand.index)
        self.known[operand.index] = {code: value}
        self.written[operand.index] = None

    # --- guards and masks ---------------------------------------------------------------------------------------

    def begin(self, site: int, ins: Instruction) -> None:
        """Starts the translation of an instruction."""
        self.site, self.ins = site, ins
        self._guard_name = None

    def guard(self) -> str | None:
        """Name of the instruction's guard predicate; None if it has no guard."""
        predicate = self.ins.predicate
        if predicate is None:
            return None
        if self._guard_name is None:
            self._guard_name = self.temp(self._use_register(predicate, "p"))
        return self._guard_name

    def mask(self) -> str:
        """Expression for the lanes in which the instruction takes effect; its value is None for all lanes."""
        guard = self.guard()
        return "m" if guard is None else f"both(m, {guard})"

    # --- the finished function ----------------------------------------------------------------------------------

    def finish(self, result: str) -> None:
        """Emits the write-back of registers that other blocks read, and the return of ``result``."""
        kept = [index for index in self.written if self.program.is_live_across_blocks(index)]
        values = []
        for index in kept:
            canonical = self.program.canonical[index]
            names = self.known[index]
            values.append(names.get(canonical) or self._convert(index, names, canonical))
        if kept:
            numbers = self.program.numbers(tuple(kept))
            self.lines.append(f"write_back(R, {numbers}, ({', '.join(values)},), m)")
        self.lines.append(f"return {result}")

    def source(self) -> str:
        """Text of the function, which begins by reading the register file."""
        lines = self.lines
        if len(self.loaded) == 1:
            lines = [f"{name} = R[{index}]" for index, name in self.loaded.items()] + lines
        elif self.loaded:
            names = ", ".join(self.loaded.values())
            lines = [f"{names} = {self.program.reader(tuple(self.loaded))}(R)", *lines]
        return "def block(R, X, m):\n    " + "\n    ".join(lines) + "\n"


Handler = Callable[[BlockWriter, Instruction], None]


def allow(ins: Instruction, *groups: Any) -> None:
    """Checks the modifiers of an opcode.

    Raises:
        Unsupported: A modifier is in none of the groups.
    """
    for part in ins.parts[1:]:
        for group in groups:
            if part == group if isinstance(group, str) else part in group:
                break
        else:
            raise Unsupported(f"modifier .{part}")
