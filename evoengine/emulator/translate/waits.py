"""mbarrier instructions, ``setmaxnreg``, and the waits that suspend threads."""

from __future__ import annotations

from typing import Final

from evoengine.emulator.batch.register_pool import HIGHEST, LOWEST, STEP
from evoengine.emulator.ptx.records import Imm, Instruction
from evoengine.emulator.translate.memory import address
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow

SUSPENDING: Final = ("mbarrier", "setmaxnreg", "wgmma", "cp")
"""Opcodes of the waits that end a block."""
_SPACES: Final = ("shared", "shared::cta", "shared::cluster")
_ORDERS: Final = ("release", "acquire", "cta", "cluster")


def terminator(w: BlockWriter, ins: Instruction) -> str:
    """Result expression of a wait that ends a block; see :mod:`evoengine.emulator.instructions.waits`."""
    if ins.name == "mbarrier":
        return _try_wait(w, ins)
    if ins.name == "setmaxnreg":
        wait = f"RegisterWait({_register_count(ins)})"
    elif ins.name == "wgmma":
        wait = f"GroupWait({_newest(ins)}, True, False)"
    else:
        wait = f"GroupWait({_newest(ins)}, False, {'read' in ins.parts})"
    return f"('suspend', {wait}, {w.guard()}, {w.block.follower}, {w.site})"


def _newest(ins: Instruction) -> int:
    operand = ins.operands[0]
    if not isinstance(operand, Imm):
        raise Unsupported("wait_group without a literal")
    return int(operand.text, 0)


def _try_wait(w: BlockWriter, ins: Instruction) -> str:
    """Translates ``try_wait``: threads are suspended until the phase is complete, except those that give up."""
    allow(ins, ("try_wait", "parity", "b64"), _SPACES, _ORDERS)
    done, at, token = ins.operands[:3]
    parity = "parity" in ins.parts
    operands = f"{address(w, at, 'shared')}, {w.use(token, 'I' if parity else 'Q')}, {parity}"
    waits = w.temp(f"mbarrier_try(X, {operands}, {w.mask()}, {w.site})")
    held, lanes = w.temp(f"PhaseWait({operands})"), w.guard()
    w.assign(done, "p", waits)
    lanes = waits if lanes is None else f"{lanes} & {waits}"
    return f"('suspend', {held}, {lanes}, {w.block.follower}, {w.site})"


def _mbarrier(w: BlockWriter, ins: Instruction) -> None:
    operation = ins.parts[1] if len(ins.parts) > 1 else ""
    if operation == "test_wait":
        allow(ins, ("test_wait", "parity", "b64"), _SPACES, _ORDERS)
        done, at, token = ins.operands
        parity = "parity" in ins.parts
        value = w.use(token, "I" if parity else "Q")
        call = f"mbarrier_test(X, {address(w, at, 'shared')}, {value}, {parity}, {w.mask()}, {w.site})"
        w.assign(done, "p", call)
    elif operation in ("arrive", "arrive_drop"):
        _arrive(w, ins)
    elif operation == "init":
        allow(ins, ("init", "b64"), _SPACES)
        at, count = ins.operands
        w.emit(f"mbarrier_init(X, {address(w, at, 'shared')}, {w.use(count, 'I')}, {w.mask()}, {w.site})")
    elif operation == "inval":
        allow(ins, ("inval", "b64"), _SPACES)
        w.emit(f"mbarrier_invalidate(X, {address(w, ins.operands[0], 'shared')}, {w.mask()}, {w.site})")
    elif operation in ("expect_tx", "complete_tx"):
        allow(ins, ("expect_tx", "complete_tx", "relaxed", "b64"), _SPACES, _ORDERS)
        at, count = ins.operands
        sign = 1 if operation == "expect_tx" else -1
        call = f"{address(w, at, 'shared')}, {w.use(count, 'I')}, {sign}, {w.mask()}, {w.site}"
        w.emit(f"mbarrier_transact(X, {call})")
    else:
        raise Unsupported("operation on an mbarrier")


def _arrive(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("arrive", "arrive_drop", "expect_tx", "noComplete", "b64"), _SPACES, _ORDERS)
    state, at, *amount = ins.operands
    expects = "expect_tx" in ins.parts
    value = w.use(amount[0], "I") if amount else w.constant(1, "I")
    count, expected = (w.constant(1, "I"), value) if expects else (value, "None")
    options = "".join(
        f", {name}=True" for part, name in (("arrive_drop", "drop"), ("noComplete", "incomplete")) if part in ins.parts
    )
    call = f"mbarrier_arrive(X, {address(w, at, 'shared')}, {count}, {expected}, {w.mask()}, {w.site}{options})"
    if state is None:
        w.emit(call)
    else:
        w.assign(state, "Q", w.temp(call))


def _register_count(ins: Instruction) -> int:
    allow(ins, ("inc", "dec"), "sync", "aligned", "u32")
    operand = ins.operands[0]
    count = int(operand.text, 0) if isinstance(operand, Imm) else 0
    if count % STEP or not LOWEST <= count <= HIGHEST:
        raise Unsupported(f"register count {count}; multiples of {STEP} from {LOWEST} to {HIGHEST} are valid")
    return count


def _set_registers(w: BlockWriter, ins: Instruction) -> None:
    w.emit(f"X.release_registers({_register_count(ins)}, {w.mask()}, {w.site})")


HANDLERS: dict[str, Handler] = {"mbarrier": _mbarrier, "setmaxnreg": _set_registers}
