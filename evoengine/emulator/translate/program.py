"""Executable form of an entry: constants, memory layout, and a function for each basic block, compiled on first use."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from evoengine.emulator.arrays import CODE_BITS, Array
from evoengine.emulator.batch.register_pool import STEP
from evoengine.emulator.checks.ignored_waits import find_ignored_wait
from evoengine.emulator.checks.pending_registers import find_pending_access
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.instructions import bulk_copy, mbarrier, warp_members, warpgroup
from evoengine.emulator.instructions import waits as wait_records
from evoengine.emulator.instructions import wmma as wmma_ops
from evoengine.emulator.instructions import wmma_shapes as wmma_shape_ops
from evoengine.emulator.ptx.control_flow import Block, ControlFlow, build, cut_points, ends_block, polling_blocks
from evoengine.emulator.ptx.dependency_analysis import Structure, structures_of
from evoengine.emulator.ptx.inlined_lines import calling_line
from evoengine.emulator.ptx.pipes import BlockCounts, count_block
from evoengine.emulator.ptx.records import (
    TYPE_BITS,
    Box,
    Entry,
    Instruction,
    Mem,
    Operand,
    Pair,
    Reg,
    Sym,
    Variable,
    Vec,
)
from evoengine.emulator.semantics import atomics, directed, fp8, integers, mma, mma_forms, packed, warp_ops
from evoengine.emulator.semantics import floats as numerics
from evoengine.emulator.translate import (
    bulk,
    control,
    convert,
    floating,
    integer,
    memory,
    moving,
    tensor_forms,
    waits,
    warp,
    wmma,
)
from evoengine.emulator.translate import warpgroup as warpgroup_forms
from evoengine.emulator.translate.tensor import MmaFuser
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, code_of

_NO_DESTINATION: Final = frozenset(
    (
        "st",
        "red",
        "bra",
        "brx",
        "bar",
        "barrier",
        "barrier_note",
        "ret",
        "exit",
        "trap",
        "cp",
        "stmatrix",
        "prefetch",
        "prefetchu",
        "membar",
        "fence",
        "wgmma",  # reads its accumulators too
        "setmaxnreg",
    )
)
_SM_REGISTERS: Final = 65536
_MAX_REGISTERS: Final = 248
"""Largest multiple of 8 that a thread can have."""
_FLOATS: Final = frozenset(("f16", "f16x2", "bf16", "bf16x2", "f32", "f64"))
_MBARRIER_RESULTS: Final = frozenset(("arrive", "arrive_drop", "test_wait", "try_wait"))
"""Operations on mbarriers that have a destination."""
_SPECIALS: Final = {
    **{f"%{name}.{axis}": f"{name}_{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    "%laneid": "laneid",
    "%warpid": "warpid",
    "%nwarpid": "nwarpid",
    "%smid": "smid",
    "%nsmid": "nsmid",
    "%gridid": "gridid",
    "%clock": "clock",
    "%clock64": "clock64",
    "%clock_hi": "clock_hi",
    "%globaltimer_lo": "clock",
    "%globaltimer_hi": "clock_hi",
    "%globaltimer": "clock64",
    "%dynamic_smem_size": "dynamic_smem_size",
    "%total_smem_size": "total_smem_size",
    "%aggr_smem_size": "total_smem_size",
    **{f"%envreg{number}": "envreg" for number in range(32)},
    "%lanemask_eq": "lanemask_eq",
    "%lanemask_lt": "lanemask_lt",
    "%lanemask_le": "lanemask_le",
    "%lanemask_gt": "lanemask_gt",
    "%lanemask_ge": "lanemask_ge",
}


def _handlers() -> tuple[dict[str, Handler], dict[str, Handler]]:
    general: dict[str, Handler] = {}
    for table in (integer, convert, moving, memory, warp, control, wmma, warpgroup_forms, waits, bulk):
        general.update(table.HANDLERS)
    return general, floating.HANDLERS


_GENERAL, _FLOATING = _handlers()
_ASYNC_COPIES: Final[dict[str, Handler]] = {"bulk": bulk.copy, "mbarrier": bulk.arrive}
"""Handlers of ``cp.async`` by its next modifier, except those of plain copies."""


def _both(mask: Array | None, guard: Array) -> Array:
    """Lanes of the mask, None for all, in which the guard is true."""
    return guard if mask is None else mask & guard


def _write_back(registers: list[Array], numbers: Sequence[int], values: Sequence[Array], mask: Array | None) -> None:
    """Writes values to the register file for the masked lanes."""
    for number, value in zip(numbers, values, strict=True):
        registers[number] = value if mask is None else np.where(mask, value, registers[number])


def _registers(operand: Operand) -> Sequence[int]:
    if isinstance(operand, Reg):
        return (operand.index,)
    if isinstance(operand, Mem):
        return (operand.base.index,) if isinstance(operand.base, Reg) else ()
    if isinstance(operand, Box):
        return [*_registers(operand.map), *_registers(Vec(operand.coordinates))]
    if isinstance(operand, Vec):
        return [item.index for item in operand.items if isinstance(item, Reg)]
    if isinstance(operand, Pair):
        return [item.index for item in (operand.first, operand.second) if item is not None]
    return ()


def _has_destination(ins: Instruction) -> bool:
    """Whether the first operand is a destination."""
    if ins.name == "mbarrier":
        return ins.parts[1] in _MBARRIER_RESULTS
    return ins.name not in _NO_DESTINATION and ins.parts[:2] != ("wmma", "store")


class Program:
    """A translated entry; implements :class:`~evoengine.emulator.translate.writer.ProgramContext`.

    Args:
        entry: Parsed entry.
        late: Whether asynchronous operations execute as late as possible.
    """

    def __init__(self, entry: Entry, *, late: bool = False) -> None:
        self.entry = entry
        self._late = late
        self.flow: ControlFlow = build(entry, late=late)
        self.canonical = [code_of(kind) if kind != "pred" else "p" for kind in entry.register_types]
        self.counts: list[BlockCounts] = [count_block(entry, block) for block in self.flow.blocks]
        self.structures: list[Structure] = structures_of(entry, self.flow.blocks)
        self.work: list[int] = [counts.tensor_flops for counts in self.counts]
        """Tensor operations of each block for one warp; instructions in a kernel that has no tensor operations."""
        if not any(self.work):
            self.work = [counts.size for counts in self.counts]
        self.uses = [0] * len(self.canonical)
        self._only_block: list[int | None] = [None] * len(self.canonical)
        """The only block that uses a register; -1 if the register is live across blocks, None if it is unused."""
        self._find_live_ranges()
        self._constants: dict[tuple[int, str], str] = {}
        self._namespace: dict[str, Any] = self._names()
        self._functions: dict[int, Callable[..., Any]] = {}
        self._lay_out()

    @functools.cached_property
    def uses_mbarriers(self) -> bool:
        """Whether the entry has mbarriers, or bulk copies."""
        return any(ins.name == "mbarrier" or "bulk" in ins.parts[:4] for ins in self.entry.instructions)

    @functools.cached_property
    def uses_async_proxy(self) -> bool:
        """Whether the entry has operations of the async proxy: bulk copies or ``wgmma``."""
        return self.uses_mbarriers or any(ins.name == "wgmma" for ins in self.entry.instructions)

    @functools.cached_property
    def stores_bytes(self) -> bool:
        """Whether the entry stores single bytes to memory that may be shared."""
        stores = (ins.parts for ins in self.entry.instructions if ins.name == "st")
        return any(parts[-1] in ("b8", "u8", "s8") and not {"global", "local"} & {*parts} for parts in stores)

    @functools.cached_property
    def smallest_access(self) -> int:
        """Bytes of the smallest load or store in memory that may be shared, at most four."""
        accesses = (ins.parts for ins in self.entry.instructions if ins.name in ("ld", "st"))
        shared = (parts for parts in accesses if not {"global", "local", "param", "const"} & {*parts})
        return min((4, *(TYPE_BITS[parts[-1]] // 8 for parts in shared)))

    @functools.cached_property
    def one_lane_releases(self) -> bool:
        """Whether a lane may release what its warp has done: the entry has mbarriers, or atomics on shared memory."""
        return self.uses_mbarriers or self.strong_beside_atomics is not None

    @functools.cached_property
    def strong_beside_atomics(self) -> frozenset[int] | None:
        """Strong loads and stores of an entry with atomics on memory that may be shared; None without such atomics."""
        instructions = self.entry.instructions
        beside = any(ins.name in ("atom", "red") and "global" not in ins.parts for ins in instructions)
        return self.strong if beside else None

    @functools.cached_property
    def strong(self) -> frozenset[int]:
        """Indices of the instructions with ``volatile``, ``relaxed``, ``mmio`` or ``acquire``, atomics included."""
        strong = ("volatile", "relaxed", "mmio", "acquire")
        instructions = enumerate(self.entry.instructions)
        return frozenset(number for number, ins in instructions if any(part in strong for part in ins.parts))

    @functools.cached_property
    def depends_on_turns(self) -> bool:
        """Whether the order in which lanes execute an atomic may change results.

        True if an atomic adds floating-point numbers, which are rounded, or if an atomic on memory that may be shared
        returns an old value that is used.
        """
        for ins in self.entry.instructions:
            if ins.name in ("atom", "red", "cp") and "add" in ins.parts and ins.parts[-1] in _FLOATS:
                return True
            if ins.name == "atom" and "global" not in ins.parts:
                old = ins.operands[0]
                if isinstance(old, Reg) and self.uses[old.index]:
                    return True
        return False

    @functools.cached_property
    def warpgroup_blocks(self) -> frozenset[int]:
        """Blocks with instructions that a whole warpgroup executes."""
        instructions = self.entry.instructions
        return frozenset(
            block.index
            for block in self.flow.blocks
            if any(ins.name == "wgmma" for ins in instructions[block.start : block.end])
        )

    @functools.cached_property
    def pending_access(self) -> Fault | None:
        """Fault of an access to a register that a pending ``wgmma`` uses; None without any."""
        if not any(ins.name == "wgmma" for ins in self.entry.instructions):
            return None
        found = find_pending_access(self.entry, self.flow.blocks, _registers, _has_destination)
        if found is None:
            return None
        return self.fault_at(self.entry.instructions[found.site], FaultKind.OPERAND_IN_FLIGHT, found.detail)

    @functools.cached_property
    def ignored_wait(self) -> Fault | None:
        """Fault of a ``mbarrier.try_wait`` whose result decides nothing; None without any."""
        site = find_ignored_wait(self.entry.instructions, _registers, _has_destination)
        if site is None:
            return None
        detail = "mbarrier.try_wait may return false before the phase is complete: repeat it until it is true"
        return self.fault_at(self.entry.instructions[site], FaultKind.DATA_RACE, detail)

    @functools.cached_property
    def sets_registers(self) -> bool:
        """Whether the entry has ``setmaxnreg``."""
        return any(ins.name == "setmaxnreg" for ins in self.entry.instructions)

    @property
    def entry_registers(self) -> int | None:
        """Registers per thread that the launch bounds of the PTX imply; None without any."""
        limits = self.entry.limits
        if "maxnreg" in limits:
            return limits["maxnreg"][0]
        if "maxntid" not in limits:
            return None
        threads = math.prod(limits["maxntid"]) * limits.get("minnctapersm", (1,))[0]
        return min(_SM_REGISTERS // threads // STEP * STEP, _MAX_REGISTERS)

    @functools.cached_property
    def cut_points(self) -> frozenset[int]:
        """Blocks at whose start some CTAs of a batch may overtake others; see :func:`cut_points`."""
        return cut_points(self.entry, self.flow.blocks)

    @functools.cached_property
    def polling(self) -> frozenset[int]:
        """Blocks of loops that only wait for what other threads write; see :func:`polling_blocks`."""
        return polling_blocks(self.entry, self.flow.blocks)

    def _names(self) -> dict[str, Any]:
        names: dict[str, Any] = {"np": np, "where": np.where, "multiply": mma.multiply, "add_each": mma.add_each}
        names |= {"both": _both, "write_back": _write_back}
        for module in (
            numerics,
            integers,
            directed,
            packed,
            atomics,
            warp_members,
            warp_ops,
            wmma_ops,
            wmma_shape_ops,
            mma_forms,
            fp8,
            warpgroup,
            mbarrier,
            bulk_copy,
            wait_records,
        ):
            names.update(
                {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
            )
        return names

    def _find_live_ranges(self) -> None:
        """Counts the uses of each register, and finds those that are live in one block only."""
        only_block, uses = self._only_block, self.uses
        for block in self.flow.blocks:
            for ins in self.entry.instructions[block.start : block.end]:
                operands = ins.operands
                if ins.predicate is not None:
                    self._add_access(ins.predicate.index, block.index, False)
                has_destination = _has_destination(ins)
                for operand in operands[1:] if has_destination else operands:
                    for index in _registers(operand):
                        uses[index] += 1
                        if only_block[index] != block.index:
                            only_block[index] = -1
                if has_destination and operands:
                    for index in _registers(operands[0]):
                        self._add_access(index, block.index, ins.predicate is None)

    def _add_access(self, index: int, block: int, defines: bool) -> None:
        if self._only_block[index] is None and defines:
            self._only_block[index] = block
        elif self._only_block[index] != block:
            self._only_block[index] = -1

    def is_live_across_blocks(self, index: int) -> bool:
        """Whether the value of a register is stored in the register file at the end of its block."""
        return self._only_block[index] == -1

    # --- addresses ----------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Computes the offsets of shared and local variables; extern shared arrays all start after the static ones."""
        self.offsets: dict[str, int] = {param.name: param.offset for param in self.entry.params}
        self.static_smem_bytes = self._allocate("shared", lambda v: v.size > 0, 0)
        self.local_bytes = self._allocate("local", lambda _: True, 0)
        extern = [v for v in self.entry.variables.values() if v.space == "shared" and v.size == 0]
        align = max((v.align for v in extern), default=1)
        self.dynamic_start = (self.static_smem_bytes + align - 1) // align * align
        for variable in extern:
            self.offsets[variable.name] = self.dynamic_start

    def _allocate(self, space: str, wanted: Callable[[Variable], bool], offset: int) -> int:
        for variable in self.entry.variables.values():
            if variable.space == space and wanted(variable):
                offset = (offset + variable.align - 1) // variable.align * variable.align
                self.offsets[variable.name] = offset
                offset += variable.size
        return offset

    def address_of(self, symbol: Sym) -> int:
        """Offset of a variable or parameter in its state space: shared, local or param."""
        if symbol.name not in self.offsets:
            raise Unsupported(f"address of {symbol.name}")
        return self.offsets[symbol.name] + symbol.offset

    def symbol_address(self, symbol: Sym, code: str) -> str:
        """Expression for the address of a variable; module variables are allocated when a launch begins."""
        if symbol.name in self.offsets:
            return self.constant(self.address_of(symbol), code)
        return f"X.symbol({symbol.name!r}, {symbol.offset})"

    def special_attribute(self, name: str) -> str:
        """Name of the attribute of the batch that holds a special register."""
        if name not in _SPECIALS:
            raise Unsupported(f"special register {name}")
        return _SPECIALS[name]

    def constant(self, value: int, code: str) -> str:
        """Name of a ``[1, 1]`` array with these bits."""
        bits = CODE_BITS[code]
        value &= (1 << bits) - 1
        key = (value, code)
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = f"k{len(self._constants)}"
            if code == "p":
                array: Array = np.array([[bool(value)]])
            else:
                array = np.frombuffer(value.to_bytes(bits // 8, "little"), np.dtype(code)).reshape(1, 1)
            self._namespace[name] = array
        return name

    def numbers(self, registers: tuple[int, ...]) -> str:
        """Name of a tuple with these register indices."""
        return self._name("n", registers)

    def reader(self, registers: tuple[int, ...]) -> str:
        """Name of a function that returns the values of several registers from the register file."""
        return self._name("g", operator.itemgetter(*registers))

    def _name(self, kind: str, value: object) -> str:
        """Adds a value to the namespace of the generated functions; returns its name."""
        name = f"{kind}{len(self._namespace)}"
        self._namespace[name] = value
        return name

    # --- blocks -------------------------------------------------------------------------------------------------

    def registers(self) -> list[Array]:
        """A new register file, whose bits are all set: NaN in every float type, as in unwritten shared memory."""
        poison = {"p": np.ones((1, 1), np.bool_)}
        for code in set(self.canonical) - {"p"}:
            poison[code] = np.full(CODE_BITS[code] // 8, 0xFF, np.uint8).view(code)[None, :]
        return [poison[code] for code in self.canonical]

    def source(self, block: Block) -> str:
        """Python source of one block.

        Raises:
            EmulatorError: An instruction or modifier is not supported.
        """
        w = BlockWriter(self, block)
        fuser = MmaFuser(w)
        w.before_use, w.before_write = fuser.before_use, fuser.before_write
        result = str(block.follower)
        for site in range(block.start, block.end):
            ins = self.entry.instructions[site]
            w.begin(site, ins)
            if self.one_lane_releases and ("sync" in ins.parts or ins.name in ("bar", "barrier")):
                w.emit(f"X.converge({w.mask()})")
            try:
                if ends_block(ins.parts, late=self._late):
                    result = waits.terminator(w, ins) if ins.name in waits.SUSPENDING else control.terminator(w, ins)
                else:
                    self._translate(w, ins, fuser)
            except Unsupported as error:
                raise self.unsupported(ins, str(error)) from None
            except (ValueError, KeyError, IndexError, AssertionError, AttributeError) as error:
                raise self.unsupported(ins, f"operands ({error!r})") from None
        fuser.flush()
        w.finish(result)
        return w.source()

    def _translate(self, w: BlockWriter, ins: Instruction, fuser: MmaFuser) -> None:
        name = ins.name
        if name == "mma" and tensor_forms.is_other_form(ins):
            tensor_forms.multiply(w, ins)
        elif name == "mma":
            fuser.add(ins)
        elif name == "cp" and len(ins.parts) > 1 and ins.parts[1] == "async":
            _ASYNC_COPIES.get(ins.parts[2], memory.copy_async)(w, ins)
        elif name == "cp":
            bulk.reduce(w, ins)
        elif name in _FLOATING and (floating.is_float(ins) or name not in _GENERAL):
            if not floating.is_float(ins):
                raise Unsupported(f"type .{ins.parts[-1]}")
            _FLOATING[name](w, ins)
        elif name in _GENERAL:
            _GENERAL[name](w, ins)
        else:
            raise Unsupported("unknown opcode")

    def unsupported(self, ins: Instruction, detail: str) -> EmulatorError:
        """Error for an instruction that cannot be translated."""
        return EmulatorError(self.fault_at(ins, FaultKind.UNSUPPORTED_INSTRUCTION, f"{ins.opcode}: {detail}"))

    def fault_at(self, ins: Instruction, kind: FaultKind, detail: str) -> Fault:
        """Fault with the PTX and source lines of an instruction."""
        return Fault(kind, detail, *self.place_of(ins))

    def place_of(self, ins: Instruction) -> tuple[int, str, int | None, str]:
        """PTX line, its text, source line and source file of an instruction.

        What is inlined from another file, such as a header of CUDA, has the line of the call.
        """
        lines = self.entry.text_lines
        text = lines[ins.line - 1].strip() if ins.line <= len(lines) else ""
        file, line = calling_line(lines[: ins.line], ins.source) if ins.source else (0, None)
        return ins.line, text, line, self.entry.files.get(file, "")

    def function(self, index: int) -> Callable[..., Any]:
        """The compiled function of a block.

        Its arguments are the register file, the batch and the mask; it returns how lanes leave the block, as
        :data:`~evoengine.emulator.batch.state.Target`.
        """
        found = self._functions.get(index)
        if found is None:
            text = self.source(self.flow.blocks[index])
            code = compile(text, f"<ptx {self.entry.name} block {index}>", "exec")
            scope: dict[str, Any] = {}
            exec(code, self._namespace, scope)  # noqa: S102 — source generated by this package
            found = self._functions[index] = scope["block"]
        return found
