"""Loops of an entry's control flow, found from its branches."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evoengine.emulator.ptx.control_flow import Block
from evoengine.emulator.ptx.records import Entry, Label

_LEAVES = frozenset({"ret", "exit", "trap"})


def innermost_loops(entry: Entry, blocks: Sequence[Block], around: Collection[int]) -> frozenset[int]:
    """Blocks of the loops that have one of ``around`` in them, and no smaller such loop.

    Natural loops: a branch back to a block, and every block from which control reaches that branch without passing it
    (Aho, Lam, Sethi, Ullman, "Compilers", 2nd edition, section 9.6.6). Blocks lie in the order of the PTX, so that a
    branch to an earlier block, or to its own, goes back.
    """
    into: list[list[int]] = [[] for _ in blocks]
    back: dict[int, list[int]] = {}
    for block in blocks:
        for number in _successors(entry, blocks, block):
            into[number].append(block.index)
            if number <= block.index:
                back.setdefault(number, []).append(block.index)
    loops = [body for head, tails in back.items() if (body := _body(into, head, tails)) & set(around)]
    return frozenset().union(*(body for body in loops if not any(other < body for other in loops)))


def _body(into: Sequence[Sequence[int]], head: int, tails: Sequence[int]) -> frozenset[int]:
    """What leads back to the head; nothing where that can be entered elsewhere, which is no loop of its own."""
    body, coming = {head}, list(tails)
    while coming:
        number = coming.pop()
        if number not in body:
            body.add(number)
            coming += into[number]
    return frozenset(body) if head == 0 or 0 not in body else frozenset()


def _successors(entry: Entry, blocks: Sequence[Block], block: Block) -> set[int]:
    """Blocks that control may go on to."""
    last = entry.instructions[block.end - 1]
    labels = [operand.name for operand in last.operands if isinstance(operand, Label)] if last.name[:2] == "br" else []
    names = [name for label in labels for name in entry.branch_targets.get(label, (label,))]
    starts = {one.start: one.index for one in blocks} if names else {}
    found = {starts[entry.labels[name]] for name in names if entry.labels.get(name) in starts}
    always = last.predicate is None and last.name in {"bra", "brx", *_LEAVES}
    return found if always or block.follower < 0 else found | {block.follower}
