"""A batch that also counts wavefronts, sectors, active lanes and divergent warps of every instruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evoengine.emulator.arrays import CODE_BITS, Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.counters import banks
from evoengine.emulator.counters.instruction_counters import SECTOR_ACCESSES, Access, InstructionCounter
from evoengine.emulator.counters.report import InstructionCounts
from evoengine.emulator.ptx.pipes import pipe_of
from evoengine.emulator.ptx.records import Entry
from evoengine.emulator.semantics.atomics import Atomic
from evoengine.emulator.translate.program import Program


class CountingBatch(Batch):
    """A :class:`Batch` that computes the same results and counts accesses.

    Args:
        counter: Counter of the launch; updated in place.
        entry: Entry that is launched.
        args: Arguments of :class:`Batch`.
    """

    def __init__(self, counter: InstructionCounter, entry: Entry, *args: Any) -> None:
        super().__init__(*args)
        self._counter = counter
        self._entry = entry

    def _count(self, kind: Access, address: Array, size: int, mask: Array | None, site: int) -> None:
        if kind in SECTOR_ACCESSES and self._counter.conflicts_only:
            return
        self._counter.count_access(site, kind, address, size, mask, (self.ctas, self.threads))

    def load_shared(
        self, address: Array, code: str, count: int, mask: Array | None, site: int, ordered: bool = False
    ) -> Any:
        words = super().load_shared(address, code, count, mask, site, ordered)
        self._count(Access.SHARED_LOAD, address, CODE_BITS[code] // 8 * count, mask, site)
        return words

    def store_shared(
        self,
        address: Array,
        code: str,
        values: Sequence[Array],
        mask: Array | None,
        site: int,
        ordered: bool = False,
    ) -> None:
        """Stores elements and counts the access."""
        super().store_shared(address, code, values, mask, site, ordered)
        self._count(Access.SHARED_STORE, address, CODE_BITS[code] // 8 * len(values), mask, site)

    def load_global(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        words = super().load_global(address, code, count, mask, site)
        self._count(Access.GLOBAL, address, CODE_BITS[code] // 8 * count, mask, site)
        return words

    def store_global(self, address: Array, code: str, values: Sequence[Array], mask: Array | None, site: int) -> None:
        super().store_global(address, code, values, mask, site)
        self._count(Access.GLOBAL, address, CODE_BITS[code] // 8 * len(values), mask, site)

    def load_local(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        words = super().load_local(address, code, count, mask, site)
        self._count(Access.LOCAL, address, CODE_BITS[code] // 8 * count, mask, site)
        return words

    def store_local(self, address: Array, code: str, values: Sequence[Array], mask: Array | None, site: int) -> None:
        super().store_local(address, code, values, mask, site)
        self._count(Access.LOCAL, address, CODE_BITS[code] // 8 * len(values), mask, site)

    def shared_atomic(self, address: Array, atomic: Atomic, mask: Array | None, site: int) -> Array:
        found = super().shared_atomic(address, atomic, mask, site)
        self._count(Access.SHARED_ATOMIC, address, atomic.size, mask, site)
        return found

    def global_atomic(self, address: Array, atomic: Atomic, mask: Array | None, site: int) -> Array:
        found = super().global_atomic(address, atomic, mask, site)
        self._count(Access.GLOBAL, address, atomic.size, mask, site)
        return found

    def copy_async(
        self, target: Array, source: Array, size: int, keep: Array | None, mask: Array | None, site: int
    ) -> None:
        """Issues ``cp.async`` and counts it; lanes that copy no bytes read no sector, but write zeros."""
        super().copy_async(target, source, size, keep, mask, site)
        self._count(Access.SHARED_STORE, target, size, mask, site)
        if self._counter.conflicts_only:
            return
        read = mask
        if keep is not None and not (keep > 0).all():
            read = (keep > 0) if mask is None else mask & (keep > 0)
        if "cg" in self._entry.instructions[site].parts:  # bypasses L1
            self._count(Access.COPY, banks.copy_route(source, target), size, read, site)
        else:
            self._count(Access.GLOBAL, source, size, read, site)

    def load_matrices(self, address: Array, count: int, transpose: bool, mask: Array | None, site: int) -> Array:
        rows = super().load_matrices(address, count, transpose, mask, site)
        self._count(Access.MATRIX, address, count, mask, site)
        return rows

    def store_matrices(
        self, address: Array, values: Sequence[Array], transpose: bool, mask: Array | None, site: int
    ) -> None:
        super().store_matrices(address, values, transpose, mask, site)
        self._count(Access.MATRIX, address, len(values), mask, site)

    def record_tile_access(
        self, space: str, address: Array, pitch: Array, size: int, mask: Array | None, site: int, what: str
    ) -> None:
        """Counts a ``wmma`` tile access as the machine instructions that ptxas generates for it.

        An operand in shared memory is one ``LDSM.x4``. Other accesses use the fragment layout of ``mma``: four accesses
        of two neighbouring elements per lane, in rows ``g`` and ``g + 8`` and columns ``2t`` and ``2t + 8``.
        """
        lane = (np.arange(self.threads, dtype=np.uint32) % np.uint32(32))[None, :]
        if space == "shared" and what == "operand":
            matrix = lane // np.uint32(8)
            line, column = (
                lane % np.uint32(8) + matrix % np.uint32(2) * np.uint32(8),
                matrix // np.uint32(2) * np.uint32(8),
            )
            self._count(Access.MATRIX, _element(address, pitch, line, column, size), 4, mask, site)
            return
        if space != "shared" and self._counter.conflicts_only:
            return
        shared = Access.SHARED_STORE if what == "store" else Access.SHARED_LOAD
        for rows, columns in ((0, 0), (8, 0), (0, 8), (8, 8)):
            line = lane // np.uint32(4) + np.uint32(rows)
            column = lane % np.uint32(4) * np.uint32(2) + np.uint32(columns)
            at = _element(address, pitch, line, column, size)
            self._count(shared if space == "shared" else Access.GLOBAL, at, 2 * size, mask, site)

    def record_block(self, block: int, mask: Array | None, result: Any) -> None:
        """Counts the lanes that ran a block, and the warps that diverge at its end."""
        if self._counter.conflicts_only:
            return
        self._counter.count_block_lanes(block, self.lane_count(mask))
        if isinstance(result, tuple) and result[0] not in ("barrier", "suspend", "switch"):
            shape = (self.ctas, self.threads)
            active = np.broadcast_to(self.alive if mask is None else mask, shape)
            taken = np.broadcast_to(result[1], shape)
            ways = [(lanes & active).reshape(-1, 32).any(axis=1) for lanes in (taken, ~taken)]
            self._counter.count_split_warps(block, int(np.count_nonzero(ways[0] & ways[1])))


def _element(address: Array, pitch: Array, line: Array, column: Array, size: int) -> Array:
    offset = (line * pitch + column) * np.uint32(size)
    return np.asarray(address + offset.astype(address.dtype))


def site_counts(
    program: Program, executed: Sequence[int], counter: InstructionCounter
) -> tuple[InstructionCounts, ...]:
    """Counts of every executed instruction, in PTX order.

    Args:
        program: Translated entry.
        executed: Number of warps that executed each block.
        counter: Counter of the launch.
    """
    entry = program.entry
    sites = []
    for block, times in zip(program.flow.blocks, executed, strict=True):
        for site in range(block.start, block.end) if times else ():
            ins = entry.instructions[site]
            file, line = ins.source or (0, 0)
            access = counter.accesses.get(site)
            sites.append(
                InstructionCounts(
                    ptx_line=ins.line,
                    ptx_text=entry.text_lines[ins.line - 1].strip(),
                    source_line=line,
                    source_file=entry.files.get(file, ""),
                    opcode=ins.opcode,
                    pipe=pipe_of(ins),
                    executions=times,
                    lanes=max(access.lanes, access.shared_lanes) if access else counter.block_lanes.get(block.index, 0),
                    wavefronts=access.wavefronts if access else 0,
                    ideal_wavefronts=access.ideal_wavefronts if access else 0,
                    sectors=access.sectors if access else 0,
                    ideal_sectors=access.ideal_sectors if access else 0,
                    split_warps=counter.split_warps.get(block.index, 0) if site == block.end - 1 else 0,
                )
            )
    return tuple(sites)
