"""A batch that also counts: what each access needs of the memory pipeline, which lanes run, which warps split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evoengine.emulator.counters import banks
from evoengine.emulator.counters.instruction_counters import SECTOR_ACCESSES, Access, InstructionCounter
from evoengine.emulator.counters.report import InstructionCounts, pipe_of
from evoengine.emulator.execution.batch import Batch
from evoengine.emulator.ptx.records import Entry
from evoengine.emulator.semantics.floats import Array
from evoengine.emulator.translate.program import Program
from evoengine.emulator.translate.writer import CODE_BITS


class CountingBatch(Batch):
    """:class:`Batch` with a counter beside it; what it computes is the same."""

    def __init__(self, counter: InstructionCounter, entry: Entry, *args: Any) -> None:
        super().__init__(*args)
        self._counter = counter
        self._entry = entry

    def _note(self, kind: Access, address: Array, size: int, mask: Array | None, site: int) -> None:
        if kind in SECTOR_ACCESSES and self._counter.conflicts_only:
            return
        self._counter.access(site, kind, address, size, mask, (self.ctas, self.threads))

    def load_shared(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        """See :meth:`Batch.load_shared`."""
        words = super().load_shared(address, code, count, mask, site)
        self._note(Access.SHARED_LOAD, address, CODE_BITS[code] // 8 * count, mask, site)
        return words

    def store_shared(self, address: Array, code: str, values: Sequence[Array], mask: Array | None, site: int) -> None:
        """See :meth:`Batch.store_shared`."""
        super().store_shared(address, code, values, mask, site)
        self._note(Access.SHARED_STORE, address, CODE_BITS[code] // 8 * len(values), mask, site)

    def load_global(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        """See :meth:`Batch.load_global`."""
        words = super().load_global(address, code, count, mask, site)
        self._note(Access.GLOBAL, address, CODE_BITS[code] // 8 * count, mask, site)
        return words

    def store_global(self, address: Array, code: str, values: Sequence[Array], mask: Array | None, site: int) -> None:
        """See :meth:`Batch.store_global`."""
        super().store_global(address, code, values, mask, site)
        self._note(Access.GLOBAL, address, CODE_BITS[code] // 8 * len(values), mask, site)

    def load_local(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        """See :meth:`Batch.load_local`."""
        words = super().load_local(address, code, count, mask, site)
        self._note(Access.LOCAL, address, CODE_BITS[code] // 8 * count, mask, site)
        return words

    def store_local(self, address: Array, code: str, values: Sequence[Array], mask: Array | None, site: int) -> None:
        """See :meth:`Batch.store_local`."""
        super().store_local(address, code, values, mask, site)
        self._note(Access.LOCAL, address, CODE_BITS[code] // 8 * len(values), mask, site)

    def atomic(
        self,
        space: str,
        address: Array,
        operation: str,
        kind: str,
        code: str,
        values: Sequence[Array],
        mask: Array | None,
        site: int,
    ) -> Array:
        """See :meth:`Batch.atomic`."""
        active = self.alive if mask is None else mask
        found = super().atomic(space, address, operation, kind, code, values, mask, site)
        shared = space == "shared" or (space == "generic" and bool((self._windows(address)[0] & active).any()))
        kinds = Access.SHARED_ATOMIC if shared else Access.GLOBAL
        self._note(kinds, address, CODE_BITS[code] // 8, mask, site)
        return found

    def copy_async(
        self, target: Array, source: Array, size: int, keep: Array | None, mask: Array | None, site: int
    ) -> None:
        """See :meth:`Batch.copy_async`; lanes that copy nothing read no sector and still write zeros."""
        super().copy_async(target, source, size, keep, mask, site)
        self._note(Access.SHARED_STORE, target, size, mask, site)
        if self._counter.conflicts_only:
            return
        read = mask
        if keep is not None and not (keep > 0).all():
            read = (keep > 0) if mask is None else mask & (keep > 0)
        if "cg" in self._entry.instructions[site].parts:  # past L1, straight to its place in shared memory
            self._note(Access.COPY, banks.copy_route(source, target), size, read, site)
        else:
            self._note(Access.GLOBAL, source, size, read, site)

    def load_matrices(self, address: Array, count: int, transpose: bool, mask: Array | None, site: int) -> Array:
        """See :meth:`Batch.load_matrices`."""
        rows = super().load_matrices(address, count, transpose, mask, site)
        self._note(Access.MATRIX, address, count, mask, site)
        return rows

    def store_matrices(
        self, address: Array, values: Sequence[Array], transpose: bool, mask: Array | None, site: int
    ) -> None:
        """See :meth:`Batch.store_matrices`."""
        super().store_matrices(address, values, transpose, mask, site)
        self._note(Access.MATRIX, address, len(values), mask, site)

    def moved(
        self, space: str, address: Array, pitch: Array, size: int, mask: Array | None, site: int, what: str
    ) -> None:
        """Counts a tile of ``wmma`` as the machine instructions that ptxas makes of it.

        An operand in shared memory is one ``LDSM.x4``. All else goes lane by lane in the layout of ``mma``: four
        accesses of two neighbouring elements, in rows ``g`` and ``g + 8`` and columns ``2t`` and ``2t + 8``.
        """
        lane = (np.arange(self.threads, dtype=np.uint32) % np.uint32(32))[None, :]
        if space == "shared" and what == "operand":
            matrix = lane // np.uint32(8)
            line, column = (
                lane % np.uint32(8) + matrix % np.uint32(2) * np.uint32(8),
                matrix // np.uint32(2) * np.uint32(8),
            )
            self._note(Access.MATRIX, _element(address, pitch, line, column, size), 4, mask, site)
            return
        if space != "shared" and self._counter.conflicts_only:
            return
        shared = Access.SHARED_STORE if what == "store" else Access.SHARED_LOAD
        for rows, columns in ((0, 0), (8, 0), (0, 8), (8, 8)):
            line = lane // np.uint32(4) + np.uint32(rows)
            column = lane % np.uint32(4) * np.uint32(2) + np.uint32(columns)
            at = _element(address, pitch, line, column, size)
            self._note(shared if space == "shared" else Access.GLOBAL, at, 2 * size, mask, site)

    def ran(self, block: int, mask: Array | None, result: Any) -> None:
        """Counts a block's lanes, and the warps whose lanes leave it two ways."""
        if self._counter.conflicts_only:
            return
        self._counter.ran(block, self.lanes(mask))
        if isinstance(result, tuple) and result[0] not in ("barrier", "switch"):
            shape = (self.ctas, self.threads)
            active = np.broadcast_to(self.alive if mask is None else mask, shape)
            taken = np.broadcast_to(result[1], shape)
            ways = [(lanes & active).reshape(-1, 32).any(axis=1) for lanes in (taken, ~taken)]
            self._counter.split(block, int(np.count_nonzero(ways[0] & ways[1])))


def _element(address: Array, pitch: Array, line: Array, column: Array, size: int) -> Array:
    offset = (line * pitch + column) * np.uint32(size)
    return np.asarray(address + offset.astype(address.dtype))


def site_counts(
    program: Program, executed: Sequence[int], counter: InstructionCounter
) -> tuple[InstructionCounts, ...]:
    """The counts of every instruction that ran, in PTX order.

    Args:
        program: the entry that was launched.
        executed: by block: warps that ran it.
        counter: what the batches counted.
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
