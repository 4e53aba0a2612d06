"""Basic blocks of an entry.

A block ends after a branch, an exit, a trap or a barrier, and before a label. Blocks keep the layout order of the PTX,
because the executor always runs the lowest-numbered block that some lane waits at: that is where lanes meet again.
"""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.emulator.ptx.records import Entry, Label

EXIT = -1
"""Block number that stands for "this lane is done"."""

_ENDS = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier"})


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``[start, end)``; ``follower`` is the block that control falls into."""

    index: int
    start: int
    end: int
    follower: int


@dataclass(frozen=True)
class ControlFlow:
    """All blocks of an entry, and the block of each label."""

    blocks: tuple[Block, ...]
    block_of_label: dict[str, int]


def ends_block(parts: tuple[str, ...]) -> bool:
    """Whether an opcode must be the last one of its block."""
    return parts[0] in _ENDS and parts[:2] != ("bar", "warp")


def build(entry: Entry) -> ControlFlow:
    """Splits an entry into blocks."""
    count = len(entry.instructions)
    starts = {0, *entry.labels.values()}
    for index, ins in enumerate(entry.instructions):
        if ends_block(ins.parts):
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
    """Block of a branch operand, or None if it is not a known label."""
    return flow.block_of_label.get(operand.name) if isinstance(operand, Label) else None
