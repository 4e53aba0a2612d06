"""Screen of a PTX module: every instruction, special register and address against what a kernel may do.

A kernel that passes has no state but its workspace, its counters and what is left in shared memory; it cannot tell
time, place or number of calls; it reads only its inputs and writes only its outputs. Bounds within a buffer are not
decided here: the emulator checks each access that it executes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from evoengine.emulator.faults import EmulatorError
from evoengine.emulator.ptx.parser import parse
from evoengine.emulator.ptx.records import Box, Entry, Instruction, Label, Mem, Operand, Special, Sym, Vec
from evoengine.emulator.screen.allowed import computes, instruction_objection, register_allowed, sleep_objection
from evoengine.emulator.screen.initialisation import partial_loads, uninitialised_reads
from evoengine.emulator.screen.module_text import screen_text
from evoengine.emulator.screen.provenance import (
    BITS,
    DATA,
    PLAIN,
    Provenance,
    Source,
    Sources,
    bases,
    sources_of,
    trace,
)
from evoengine.emulator.screen.records import Access, Finding, Rule, Signature

_MOST_FINDINGS: Final = 20
_COMPARING: Final = frozenset(("setp", "set", "testp", "vote", "redux", "match"))
_STORING: Final = frozenset(("st", "red", "atom", "stmatrix", "wmma"))
_MEMORY: Final = frozenset(("ld", "st", "atom", "red"))


def screen_ptx(ptx: str, signature: Signature) -> tuple[Finding, ...]:
    """Screens one module.

    Args:
        ptx: PTX text, as NVRTC returns it.
        signature: Entries of the module and the meaning of their arguments.

    Returns:
        The first violations, in the order of the text; none if the module passes.
    """
    found = screen_text(ptx, signature)
    if found:
        return tuple(found[:_MOST_FINDINGS])
    for name in signature.entries:
        try:
            found += _screen_entry(parse(ptx, name, unique_labels=True), signature)
        except EmulatorError as error:
            fault = error.fault
            return (Finding(Rule.TEXT, fault.ptx_line or 1, fault.ptx_text, f"the PTX cannot be read: {fault.detail}"),)
        except (ValueError, LookupError) as error:  # a form of an instruction that no compiler writes
            return (Finding(Rule.TEXT, 1, name, f"the PTX cannot be read: {error}"),)
    return tuple(sorted(found, key=lambda finding: finding.line)[:_MOST_FINDINGS])


def _screen_entry(entry: Entry, signature: Signature) -> Iterator[Finding]:
    sizes = [param.size for param in entry.params]
    wanted = [signature.argument_bytes] + [signature.map_bytes * len(signature.maps)] * bool(signature.maps)
    if sizes != wanted:
        yield Finding(Rule.MODULE, 1, entry.name, f"it has arguments of {sizes} instead of {wanted} bytes")
        return
    for ins, provenance in trace(entry, signature):
        for rule, reason in _objections(ins, provenance):
            yield _finding(rule, ins, reason, entry)
    for ins in partial_loads(entry):
        yield _finding(Rule.UNINITIALISED, ins, "bytes are used that it need not load", entry)
    for ins in uninitialised_reads(entry):
        yield _finding(Rule.UNINITIALISED, ins, "it may read a register before it is written", entry)


def _finding(rule: Rule, ins: Instruction, reason: str, entry: Entry) -> Finding:
    text = entry.text_lines[ins.line - 1] if ins.line <= len(entry.text_lines) else ins.opcode
    return Finding(rule, ins.line, " ".join(text.split())[:120], reason)


def _objections(ins: Instruction, provenance: Provenance) -> Iterator[tuple[Rule, str]]:
    objection = instruction_objection(ins) or sleep_objection(ins, provenance.entry)
    if objection:
        yield Rule.INSTRUCTION, objection
        return
    for operand in _flat(ins.operands):
        if isinstance(operand, Special) and not register_allowed(operand.name):
            yield Rule.REGISTER, f"{operand.name} may reveal time, place or the number of calls"
        if _is_label(operand, ins):
            yield Rule.INSTRUCTION, "the address of code"
    yield from _values(ins, provenance)
    if ins.parts[:3] == ("cp", "async", "bulk") or ins.name == "prefetch":
        yield from _bulk(ins, provenance)
    elif ins.parts[:2] == ("cp", "async"):
        yield from _copy(ins, provenance)
    elif ins.name in _MEMORY:
        yield from _access(ins, provenance)
    else:
        generic = ins.name == "wmma" and "shared" not in ins.parts
        for operand in ins.operands:
            if isinstance(operand, Mem):  # ldmatrix, stmatrix, mbarrier, wmma
                found = provenance.of(operand)
                yield from _generic(found) if generic else _shared(found, operand)


def _flat(operands: tuple[Operand, ...]) -> Iterator[Operand]:
    for operand in operands:
        if isinstance(operand, Box):
            yield from operand.coordinates
        else:
            yield from operand.items if isinstance(operand, Vec) else (operand,)


def _is_label(operand: Operand, ins: Instruction) -> bool:
    return isinstance(operand, Label) and ins.name != "bra"


def _values(ins: Instruction, provenance: Provenance) -> Iterator[tuple[Rule, str]]:
    """Objections to addresses that an instruction uses for something other than computing an address.

    A value computed from an address may only be in registers: it must not decide what is executed or be stored.
    """
    if ins.predicate is not None and _addresses((ins.predicate,), provenance):
        yield Rule.POINTER, "it is executed depending on the value of an address"
    compares = ins.name in _COMPARING
    if (computes(ins) and not compares) or ins.name == "cvta":
        return
    used = tuple(operand for operand in _flat(sources_of(ins)) if not isinstance(operand, Mem))
    if _addresses(used, provenance):
        verb = "compared" if compares else "stored" if ins.name in _STORING else "used other than as an address"
        yield Rule.POINTER, f"the value of an address is {verb}"


def _addresses(operands: tuple[Operand, ...], provenance: Provenance) -> bool:
    """Whether an operand holds or is computed from an address, other than one of shared or local memory."""
    found = frozenset[Source]().union(*map(provenance.of, operands))
    return BITS in found or any(source.kind not in ("shared", "local") for source in bases(found))


def _access(ins: Instruction, provenance: Provenance) -> Iterator[tuple[Rule, str]]:
    address = next((operand for operand in ins.operands if isinstance(operand, Mem)), None)
    if address is None:
        yield Rule.ADDRESS, "no address"
        return
    sources = provenance.of(address)
    kind = {"ld": Access.READ, "st": Access.WRITE}.get(ins.name, Access.ATOMIC)
    if "param" in ins.parts:
        if not sources or not all(_within(source, ins, provenance.entry) for source in sources):
            yield Rule.ADDRESS, "not an address within the arguments"
    elif "global" in ins.parts:
        yield from _global(sources, kind, provenance.signature)
        if kind is Access.ATOMIC and _stores_data(ins, sources, provenance):
            yield Rule.DATA, "contents of a tensor in a buffer that addresses may depend on"
    elif "const" in ins.parts:
        if {source.kind for source in sources - {DATA}} != {"constant"}:
            yield Rule.ADDRESS, "not an address of a constant variable"
    elif "local" in ins.parts:
        if {source.kind for source in sources - {DATA}} != {"local"}:
            yield Rule.ADDRESS, "not an address of a local variable"
    else:
        yield from _shared(sources, address)


def _within(source: Source, ins: Instruction, entry: Entry) -> bool:
    """Whether a load from this origin of its address stays within the first argument."""
    if source.kind != "argument" or source.offset is None:
        return False
    elements = next((int(part[1:]) for part in ins.parts if part in ("v2", "v4", "v8")), 1)
    size = elements * int(ins.parts[-1].lstrip("bsuf")) // 8
    return 0 <= source.offset <= entry.params[0].size - size


def _stores_data(ins: Instruction, sources: Sources, provenance: Provenance) -> bool:
    """Whether an atomic leaves the contents of a tensor where they would count as an index later."""
    indexes = {field.name for field in provenance.signature.pointers if field.indexes}
    values = (operand for operand in sources_of(ins) if not isinstance(operand, Mem))
    return any(source.name in indexes for source in bases(sources)) and any(DATA in provenance.of(v) for v in values)


def _global(sources: Sources, kind: Access, signature: Signature) -> Iterator[tuple[Rule, str]]:
    """Objections to an access to global memory."""
    found = bases(sources)
    if not found:
        yield Rule.ADDRESS, "the address does not derive from a pointer argument"
        return
    if BITS in sources:
        yield Rule.ADDRESS, "the address is computed from more than one pointer, or from bits of one"
    if PLAIN in sources:
        yield Rule.ADDRESS, "on some path the address does not derive from a pointer argument"
    if DATA in sources:
        yield Rule.DATA, "the address depends on the contents of a tensor"
    fields = {field.name: field for field in signature.pointers}
    for base in sorted(found):
        if base.kind == "pointer":
            if kind not in fields[base.name].access:
                yield Rule.ACCESS, f"{_verb(kind)} {base.name}, which is not for that"
        elif base.kind == "variable":
            if kind is not Access.READ:
                yield Rule.VARIABLE, f"{_verb(kind)} module variable {base.name}, which keeps its value between calls"
        else:
            yield Rule.ADDRESS, f"an address of kind '{base.kind}' used for global memory"


def _verb(kind: Access) -> str:
    return {Access.READ: "it reads", Access.WRITE: "it writes", Access.ATOMIC: "an atomic on"}[kind]


def _shared(sources: Sources, address: Mem) -> Iterator[tuple[Rule, str]]:
    """Objections to an address in shared memory, whose bounds the hardware checks."""
    if isinstance(address.base, Sym) and {source.kind for source in sources} != {"shared"}:
        yield Rule.ADDRESS, "not an address in shared memory"
    elif BITS in sources or any(base.kind != "shared" for base in bases(sources)):
        yield Rule.ADDRESS, "an address in shared memory is computed from another address"


def _generic(sources: Sources) -> Iterator[tuple[Rule, str]]:
    """Objections to a generic address, which the hardware does not confine to shared memory."""
    if {source.kind for source in sources} != {"generic"}:
        yield Rule.ADDRESS, "a generic address that is not one variable of shared memory plus a number on every path"


def _copy(ins: Instruction, provenance: Provenance) -> Iterator[tuple[Rule, str]]:
    """Objections to ``cp.async`` from global to shared memory."""
    memory = [operand for operand in ins.operands if isinstance(operand, Mem)]
    if memory:
        yield from _shared(provenance.of(memory[0]), memory[0])
    for source in memory[1:]:
        yield from _global(provenance.of(source), Access.READ, provenance.signature)


def _bulk(ins: Instruction, provenance: Provenance) -> Iterator[tuple[Rule, str]]:
    """Objections to copies and prefetches through tensor maps, which bound every access."""
    target = next((part for part in ins.parts if part in ("global", "shared::cluster", "shared::cta")), "")
    kind = Access.WRITE if target == "global" else Access.READ
    for operand in ins.operands:
        if isinstance(operand, Box):
            yield from _map(provenance.of(operand.map), kind, provenance.signature)
        elif isinstance(operand, Mem):
            if ins.name == "prefetch":
                yield from _map(provenance.of(operand), Access(0), provenance.signature)
            else:
                yield from _shared(provenance.of(operand), operand)


def _map(sources: Sources, kind: Access, signature: Signature) -> Iterator[tuple[Rule, str]]:
    """Objections to the address of a tensor map."""
    for source in sources:
        if source.kind != "map":
            yield Rule.ADDRESS, "not the address of a tensor map of the arguments"
        elif source.offset is None or source.offset % signature.map_bytes:
            yield Rule.ADDRESS, "the tensor map is chosen by a value"
        elif not 0 <= source.offset < signature.map_bytes * len(signature.maps):
            yield Rule.ADDRESS, "there is no such tensor map"
        elif kind and kind not in signature.maps[source.offset // signature.map_bytes]:
            yield Rule.ACCESS, f"{_verb(kind)} a tensor map, which is not for that"
    if not sources:
        yield Rule.ADDRESS, "not the address of a tensor map of the arguments"
