"""Control-flow graph of an entry: basic blocks and loops.

A block ends after a branch, an exit, a trap, a barrier or another wait that suspends threads, and before a label.
Blocks keep the layout order of the PTX, because the executor runs the lowest-numbered block that has ready lanes, which
is where diverged lanes reconverge.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.emulator.ptx.records import Entry, Instruction, Label

EXIT = -1
"""Block number that lanes which exit continue at."""

STRONG: Final = frozenset(("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"))
"""Modifiers of loads and stores that other threads may synchronise with."""
_LEAVES = frozenset({"ret", "exit", "trap"})
_ENDS = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier"})


@dataclass(frozen=True, slots=True)
class Block:
    """Basic block: instructions ``[start, end)``; control falls through to the block ``follower``."""

    index: int
    start: int
    end: int
    follower: int


@dataclass(frozen=True)
class ControlFlow:
    """Blocks of an entry, and the block of each label."""

    blocks: tuple[Block, ...]
    block_of_label: dict[str, int]


def ends_block(parts: tuple[str, ...], *, late: bool = False) -> bool:
    """Whether an instruction with this opcode ends its block; ``late`` as for :func:`build`."""
    if parts[0] in ("mbarrier", "setmaxnreg", "wgmma", "cp"):
        return _suspends(parts, late)
    return parts[0] in _ENDS and parts[:2] != ("bar", "warp")


def _suspends(parts: tuple[str, ...], late: bool) -> bool:
    """Whether threads may wait at an instruction for something other than a barrier."""
    if parts[:2] in (("mbarrier", "try_wait"), ("setmaxnreg", "inc")):
        return True
    return late and (parts[:2] == ("wgmma", "wait_group") or parts[:4] == ("cp", "async", "bulk", "wait_group"))


def build(entry: Entry, *, late: bool = False) -> ControlFlow:
    """Splits an entry into basic blocks.

    Args:
        entry: Parsed entry.
        late: Whether asynchronous operations execute as late as possible, so that threads wait at every ``wait_group``.
    """
    count = len(entry.instructions)
    starts = {0, *entry.labels.values()}
    for index, ins in enumerate(entry.instructions):
        if ends_block(ins.parts, late=late):
            starts.add(index + 1)
            if ins.predicate is not None and ins.name in ("bar", "barrier"):
                starts.add(index)
    ordered = sorted(start for start in starts if start < count)
    block_at = {start: number for number, start in enumerate(ordered)}
    blocks = tuple(
        Block(number, start, end, number + 1 if end < count else EXIT)
        for number, (start, end) in enumerate(zip(ordered, [*ordered[1:], count], strict=True))
    )
    return ControlFlow(blocks, {name: block_at.get(at, EXIT) for name, at in entry.labels.items()})


def target_of(flow: ControlFlow, operand: object) -> int | None:
    """Block of a branch operand; None if the operand is not a known label."""
    return flow.block_of_label.get(operand.name) if isinstance(operand, Label) else None


def innermost_loops(entry: Entry, blocks: Sequence[Block], around: Collection[int]) -> frozenset[int]:
    """Blocks of the innermost natural loops among those that contain a block of ``around``.

    A natural loop consists of the target of a back edge and of every block that reaches the back edge without passing
    the target (Aho, Lam, Sethi, Ullman, "Compilers", 2nd edition, section 9.6.6). As blocks are in the order of the
    PTX, a back edge is a branch to the same or an earlier block.
    """
    predecessors: list[list[int]] = [[] for _ in blocks]
    back_edges: dict[int, list[int]] = {}
    for block in blocks:
        for number in successors(entry, blocks, block):
            predecessors[number].append(block.index)
            if number <= block.index:
                back_edges.setdefault(number, []).append(block.index)
    bodies = (_loop_body(predecessors, head, tails) for head, tails in back_edges.items())
    loops = [body for body in bodies if body & set(around)]
    return frozenset().union(*(body for body in loops if not any(other < body for other in loops)))


def _loop_body(predecessors: Sequence[Sequence[int]], head: int, tails: Sequence[int]) -> frozenset[int]:
    """Blocks of the natural loop with this head; empty if the head does not dominate them."""
    body, pending = {head}, list(tails)
    while pending:
        number = pending.pop()
        if number not in body:
            body.add(number)
            pending += predecessors[number]
    return frozenset(body) if head == 0 or 0 not in body else frozenset()


_EFFECTS: Final = frozenset(
    ("st", "red", "bar", "barrier", "cp", "mma", "wmma", "wgmma", "stmatrix", "ldmatrix", "setmaxnreg", "trap")
)
"""Opcodes that do not occur in a loop that only waits for writes of other threads."""


def polling_blocks(entry: Entry, blocks: Sequence[Block]) -> frozenset[int]:
    """Blocks of loops that poll: they read memory by strong loads or atomics, or test an mbarrier, and store nothing.

    The body of a loop is taken to be everything from its head to its back edge in the order of the PTX.
    """
    found: set[int] = set()
    for block in blocks:
        last = entry.instructions[block.end - 1]
        if last.name != "bra":
            continue
        for head in (number for number in successors(entry, blocks, block) if number <= block.index):
            body = entry.instructions[blocks[head].start : block.end]
            if not any(ins.name in _EFFECTS for ins in body) and any(map(_polls, body)):
                found.update(range(head, block.index + 1))
    return frozenset(found)


def _polls(ins: Instruction) -> bool:
    """Whether an instruction may read what another thread writes meanwhile."""
    strong = ins.name == "ld" and not STRONG.isdisjoint(ins.parts)
    return strong or ins.name == "atom" or ins.parts[:2] == ("mbarrier", "test_wait")


def successors(entry: Entry, blocks: Sequence[Block], block: Block) -> set[int]:
    """Blocks that control may continue at after a block."""
    last = entry.instructions[block.end - 1]
    labels = [operand.name for operand in last.operands if isinstance(operand, Label)] if last.name[:2] == "br" else []
    names = [name for label in labels for name in entry.branch_targets.get(label, (label,))]
    starts = {one.start: one.index for one in blocks} if names else {}
    found = {starts[entry.labels[name]] for name in names if entry.labels.get(name) in starts}
    always = last.predicate is None and last.name in {"bra", "brx", *_LEAVES}
    return found if always or block.follower < 0 else found | {block.follower}


def cut_points(entry: Entry, blocks: Sequence[Block]) -> frozenset[int]:
    """Blocks at whose start CTAs may overtake each other.

    They are the first block and those after a barrier, if a strong access to global memory may follow before the next
    barrier. An entry without such accesses has none.
    """
    after_barrier = {0, *(block.follower for block in blocks if _ends_with_barrier(entry, block))}
    predecessors: list[list[int]] = [[] for _ in blocks]
    for block in blocks:
        if not _ends_with_barrier(entry, block):
            for number in successors(entry, blocks, block):
                predecessors[number].append(block.index)
    pending = [block.index for block in blocks if any(map(is_strong, entry.instructions[block.start : block.end]))]
    reaching: set[int] = set()
    while pending:
        number = pending.pop()
        if number not in reaching:
            reaching.add(number)
            pending += predecessors[number]
    return frozenset(reaching & after_barrier)


def is_strong(ins: Instruction) -> bool:
    """Whether an access is strong in the scope of the GPU: an atomic, or a load or store with one of :data:`STRONG`.

    A bulk reduction consists of relaxed atomics.
    """
    if ins.parts[:2] == ("cp", "reduce"):
        return True
    parts = frozenset(ins.parts)
    ordered = ins.name in ("atom", "red") or (ins.name in ("ld", "st") and not STRONG.isdisjoint(parts))
    return ordered and parts.isdisjoint(("cta", "cluster", "shared", "shared::cta", "local"))


def _ends_with_barrier(entry: Entry, block: Block) -> bool:
    last = entry.instructions[block.end - 1]
    return last.name in ("bar", "barrier") and last.parts[:2] != ("bar", "warp")
