"""State of one batch of CTAs; generated code calls it ``X``."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evoengine.emulator.arrays import CODE_BITS, Array, CtaRows, restricted
from evoengine.emulator.batch.async_copy import AsyncCopies
from evoengine.emulator.batch.barrier_votes import BarrierVotes
from evoengine.emulator.batch.bulk_copies import BulkCopies
from evoengine.emulator.batch.local_memory import LocalMemory
from evoengine.emulator.batch.matrices import load_matrices, store_matrices
from evoengine.emulator.batch.mbarriers import Mbarriers, Uses
from evoengine.emulator.batch.operand_reads import OperandReads
from evoengine.emulator.batch.register_pool import RegisterPool
from evoengine.emulator.batch.shared_memory import SharedMemory
from evoengine.emulator.batch.special_registers import SpecialRegisters
from evoengine.emulator.batch.traffic import Traffic
from evoengine.emulator.checks.async_guard import AsyncGuard
from evoengine.emulator.checks.lane_order import LaneOrder
from evoengine.emulator.checks.publication import PublicationCheck
from evoengine.emulator.checks.race_observer import RaceObserver
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.address_space import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, shared_address
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.words import WORD
from evoengine.emulator.semantics import atomics

Target = int | tuple[Any, ...]
"""How lanes leave a block: the next block, ``(target, lanes, follower)``, or a barrier, switch or suspend tuple."""
JointClocks = tuple[Array | None, Array | None]
"""Joint clocks of lanes for the race observer and for the order of lanes, ``[ctas, agents]``."""


def _pack_words(values: Sequence[Array], code: str, size: int) -> Array:
    """One word per lane, made of the elements of a vector store."""
    if len(values) == 1:
        return values[0].view(WORD[size])
    shape = np.broadcast_shapes(*[v.shape for v in values])
    out = np.empty((*shape, len(values)), code)
    for number, value in enumerate(values):
        out[..., number] = value
    return out.view(WORD[size])[..., 0]


def _split_words(words: Array, code: str, count: int) -> Any:
    """Elements of vector words: an array if ``count`` is 1, else ``[count, ...]``."""
    if count == 1:
        return words.view(code)
    parts = words.view(code).reshape(*words.shape, count)
    return np.ascontiguousarray(np.moveaxis(parts, -1, 0))


@dataclass(frozen=True)
class AsyncSettings:
    """How a batch executes asynchronous operations."""

    guarded: bool
    """Whether the kernel has operations of the async proxy, with which writes to shared memory may conflict."""
    overwrites: bool
    """Whether bulk copies are among them, which may overwrite what threads have read."""
    late: bool
    """Whether asynchronous operations execute as late as possible."""
    registers: int | None
    """Registers per thread at the launch, which ``setmaxnreg`` redistributes; None for any number."""


class Batch(SpecialRegisters):
    """State of the CTAs that run together, except registers.

    Masks are bool arrays that broadcast to ``[ctas, threads]``; None stands for all lanes. ``site`` is the index of the
    executing instruction in its entry. Dtype codes are those of :mod:`evoengine.emulator.arrays`.

    Args:
        grid: CTAs per axis.
        block: Threads per axis.
        ctas: Linear CTA numbers of the batch.
        smem_bytes: Shared memory per CTA.
        dynamic_bytes: Dynamic part of the shared memory.
        local_bytes: Local memory per thread.
        params: Parameter block of the launch.
        memory: Global memory.
        symbols: Addresses of module variables.
        traffic: Byte counters of the launch; updated in place.
        races: Factory of a race observer from CTAs, threads and shared bytes; None to skip race detection.
        publication: Check of the order of accesses to global memory, one for the whole launch; None to skip it.
        lanes: Factory of a check of the order between lanes of a warp, with the same arguments; None to skip it.
        asynchrony: Settings of asynchronous operations.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        ctas: Array,
        smem_bytes: int,
        dynamic_bytes: int,
        local_bytes: int,
        params: bytes,
        memory: GlobalMemory,
        symbols: dict[str, int],
        traffic: Traffic,
        races: Callable[[int, int, int], RaceObserver] | None,
        publication: PublicationCheck | None,
        lanes: Callable[[int, int, int], LaneOrder] | None,
        asynchrony: AsyncSettings,
    ) -> None:
        super().__init__(grid, block, ctas, smem_bytes, dynamic_bytes)
        self.publication = publication
        self.memory = memory
        self.traffic = traffic
        watched = races is not None and self.warps > 1
        self.races = races(self.ctas, self.threads, smem_bytes) if races and watched else None
        sizes, overwritten = (self.ctas, smem_bytes, self.threads), asynchrony.overwrites
        guard = AsyncGuard(*sizes, overwritten=overwritten) if asynchrony.guarded else None
        self.shared = SharedMemory(self.ctas, smem_bytes, self.threads, self.races, guard)
        self.shared.lane_order = lanes(self.ctas, self.threads, smem_bytes) if lanes else None
        self._asynchrony = asynchrony
        given = asynchrony.registers
        self.registers = RegisterPool(self.ctas, self.warps, given) if given is not None else None
        self.copies = AsyncCopies(self.shared)
        self._params = params
        self._param_cache: dict[tuple[int, str, int], Any] = {}
        self._symbols = symbols
        self._local_bytes = (local_bytes + 15) // 16 * 16
        self.alive = np.broadcast_to(
            np.arange(self.threads)[None, :] < self.real_threads, (self.ctas, self.threads)
        ).copy()
        self.all_lanes = np.ones((1, 1), np.bool_)
        self.reverses_atomics = False
        """Whether atomics of one instruction execute in the reverse order of the lanes of a CTA."""
        self.split_barriers: dict[int, Array] = {}
        """By member mask: how often each lane has executed a ``bar.warp.sync`` without all lanes of the mask."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the batch to some of the CTAs, without changing state shared with a shallow copy of it."""
        if "votes" in self.__dict__:
            self.votes = restricted(self.votes, rows)
        if "_local" in self.__dict__:
            self._local = restricted(self._local, rows)
        super().restrict(rows)
        self.races = restricted(self.races, rows) if self.races is not None else None
        self.shared = restricted(self.shared, rows)
        self.shared.races = self.races
        self.copies = copy.copy(self.copies)
        self.copies.restrict(rows, self.shared)
        self._restrict_asynchronous(rows)
        self.alive = self.alive[rows]
        self.split_barriers = {members: count[rows] for members, count in self.split_barriers.items()}

    def _restrict_asynchronous(self, rows: CtaRows) -> None:
        if "operands" in self.__dict__:
            self.operands = copy.copy(self.operands)
            self.operands.restrict(rows, self.shared)
        if "mbarriers" in self.__dict__:
            self.mbarriers = copy.copy(self.mbarriers)
            self.mbarriers.restrict(rows, self.shared)
        if "bulk" in self.__dict__:
            self.bulk = copy.copy(self.bulk)
            self.bulk.restrict(rows, self.shared, self.mbarriers)
        if self.registers is not None:
            self.registers = restricted(self.registers, rows)

    # --- asynchronous operations --------------------------------------------------------------------------------

    @functools.cached_property
    def operands(self) -> OperandReads:
        return OperandReads(self.shared)

    @functools.cached_property
    def mbarriers(self) -> Mbarriers:
        return Mbarriers(self.shared)

    @functools.cached_property
    def bulk(self) -> BulkCopies:
        return BulkCopies(self.shared, self.mbarriers, late=self._asynchrony.late)

    @property
    def has_bulk_copies(self) -> bool:
        return "bulk" in self.__dict__

    def lanes(self, mask: Array | None) -> Array:
        """The active lanes that have not exited, bool ``[ctas, threads]``."""
        return self.alive if mask is None else np.broadcast_to(mask, self.alive.shape) & self.alive

    def observe(self, uses: Uses, target: Array) -> None:
        """Records that threads have seen the completion of mbarrier phases, and so acquired what was released there."""
        if not uses.lanes.size:
            return
        self.mbarriers.observe(uses, target)
        self.bulk.forget_observed()
        if self.publication is not None:
            seen = np.zeros_like(self.alive)
            seen[uses.ctas, uses.lanes] = True
            self.publication.shared_atomic(self.cta_numbers, seen)

    def proxy_fence(self, mask: Array | None, space: str | None) -> None:
        """Executes ``fence.proxy.async`` for a space, ``shared`` or ``global``; None for both."""
        if space != "shared" and self.publication is not None:
            self.publication.proxy_fence(self.cta_numbers, mask)
        if space != "global" and self.shared.guard is not None:
            fenced = self.shared.guard.fence(mask)
            self.mbarriers.fence(mask)
            if self.races is not None and self._asynchrony.overwrites:
                self.races.fence(mask, fenced)

    def release_registers(self, count: int, mask: Array | None, site: int) -> None:
        """Executes ``setmaxnreg.dec``."""
        if self.registers is not None:
            active = self.lanes(mask)
            self.registers.check(count, active, site, increases=False)
            self.registers.release(count, active)

    def bytes_at(self, address: int, count: int, site: int) -> bytes:
        """Bytes at a generic address in parameters or global memory."""
        if address >> 32 == PARAM_WINDOW >> 32:
            offset = address - PARAM_WINDOW
            return self._params[offset : offset + count]
        every = np.arange(count, dtype=np.uint64)[None, :] + np.uint64(address)
        found: Array = np.broadcast_to(self.memory.gather(every, 1, None, site), every.shape)
        return found.tobytes()

    # --- control ------------------------------------------------------------------------------------------------

    @staticmethod
    def branch(lanes: Array, mask: Array | None, target: int, follower: int) -> Target:
        """Continuation of the masked lanes after a conditional branch: one block, or ``(target, lanes, follower)``."""
        if mask is not None:
            on = lanes & mask
            if not on.any():
                return follower
            return (target, lanes, follower) if (~lanes & mask).any() else target
        if lanes.size == 1:
            return target if lanes[0, 0] else follower
        if lanes.all():
            return target
        return (target, lanes, follower) if lanes.any() else follower

    def active(self, mask: Array | None) -> Array:
        """The mask as an array; ``[[True]]`` for None."""
        return self.all_lanes if mask is None else mask

    def record_barrier(
        self, number: int, lanes: Array | None, arrived: Array | None = None, clocks: JointClocks = (None, None)
    ) -> None:
        """Records that the masked lanes have synchronised at one barrier of their CTA.

        Args:
            number: Number of the barrier.
            lanes: Lanes that have waited at the barrier.
            arrived: Lanes that have only arrived, bool ``[ctas, threads]``; None without any.
            clocks: Joint clocks of the latter.
        """
        if self.races is not None:
            self.races.barrier(lanes, clocks[0])
        if self.shared.lane_order is not None:
            self.shared.lane_order.barrier(lanes, clocks[1], number)
        if self.publication is not None:
            together = lanes if lanes is None or arrived is None else lanes | arrived
            self.publication.barrier(self.cta_numbers, together)

    def warp_barrier(self, mask: Array | None) -> None:
        """Records that the masked lanes have passed a barrier of their warps."""
        if self.shared.lane_order is not None:
            self.shared.lane_order.warp_barrier(mask)

    def part_barrier(self, lanes: Array, named: Array) -> None:
        """Records a barrier of parts of warps; see :meth:`LaneOrder.part_barrier`."""
        if self.shared.lane_order is not None and lanes.any():
            self.shared.lane_order.part_barrier(lanes, named)

    def converge(self, mask: Array | None) -> None:
        """Records that the masked lanes have come to an instruction of their whole warps."""
        if self.races is not None:
            self.races.converge(mask)

    def fence(self, mask: Array | None) -> None:
        """Executes a fence of at least GPU scope: memory operations are in order already, so it is only recorded."""
        if self.publication is not None:
            self.publication.fence(self.cta_numbers, mask)

    def record_block(self, block: int, mask: Array | None, result: Target) -> None:
        """Records that the masked lanes have run a block; a hook for batches that count."""

    def record_tile_access(
        self, space: str, address: Array, pitch: Array, size: int, mask: Array | None, site: int, what: str
    ) -> None:
        """Records a ``wmma`` tile access; a hook for batches that count.

        ``what`` is ``operand`` for a load of A or B, and ``load`` or ``store`` for an accumulator.
        """

    @functools.cached_property
    def votes(self) -> BarrierVotes:
        return BarrierVotes(self.ctas, self.threads)

    def trap(self, mask: Array | None, site: int) -> None:
        """Executes ``trap``: raises :class:`SiteFault` for the first active lane."""
        active = self.alive if mask is None else np.broadcast_to(mask, self.alive.shape)
        if active.any():
            cta, lane = np.unravel_index(int(active.argmax()), active.shape)
            raise SiteFault(FaultKind.TRAP, "the kernel executed a trap", site, int(cta), int(lane))

    def jump_index(self, index: Array, count: int, mask: Array | None, site: int) -> None:
        """Checks the index of ``brx``: raises :class:`SiteFault` for the first lane whose index has no target."""
        outside = self.lanes(mask) & (index >= count)
        if outside.any():
            cta, lane = np.unravel_index(int(outside.argmax()), outside.shape)
            detail = f"brx.idx {np.broadcast_to(index, outside.shape)[cta, lane]} of {count} targets"
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(cta), int(lane))

    def lane_count(self, mask: Array | None) -> int:
        """Number of active lanes."""
        total = self.ctas * self.threads
        return total if mask is None else int(np.count_nonzero(mask)) * total // mask.size

    # --- parameters and symbols ---------------------------------------------------------------------------------

    def param(self, offset: int, code: str, count: int) -> Any:
        """Parameter at a constant offset: ``[1, 1]``, or a tuple of such arrays if ``count`` is above 1."""
        key = (offset, code, count)
        found = self._param_cache.get(key)
        if found is None:
            values = np.frombuffer(self._params, code, count, offset)
            items = tuple(v.reshape(1, 1) for v in values)
            found = self._param_cache[key] = items[0] if count == 1 else items
        return found

    def load_param(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        """Parameters at computed offsets: an array if ``count`` is 1, else ``[count, ...]``."""
        block = np.frombuffer(self._params, np.uint8)
        step = CODE_BITS[code] // 8
        offset = address.astype(np.int64)
        bad = (offset < 0) | (offset + step * count > block.size)
        if mask is not None:
            bad = bad & mask
        if bad.any():
            cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
            raise SiteFault(
                FaultKind.OUT_OF_BOUNDS,
                "access outside the parameter block",
                site,
                int(cta),
                int(lane),
                int(offset.max()),
            )
        offset = np.clip(offset, 0, block.size - step * count)
        raw = block[offset[..., None] + np.arange(step * count)]
        values = raw.view(code)
        return values[..., 0] if count == 1 else np.moveaxis(values, -1, 0)

    def symbol(self, name: str, offset: int) -> Array:
        """Address of a module variable."""
        return np.full((1, 1), self._symbols[name] + offset, np.uint64)

    # --- memory -------------------------------------------------------------------------------------------------

    def load_shared(
        self, address: Array, code: str, count: int, mask: Array | None, site: int, ordered: bool = False
    ) -> Any:
        """Elements at shared addresses: an array if ``count`` is 1, else ``[count, ...]``.

        ``ordered`` stands for ``ld.acquire``.
        """
        size = CODE_BITS[code] // 8 * count
        self.traffic.shared_read_bytes += size * self.lane_count(mask)
        words = self.shared.gather(address, size, mask, site, atomic=ordered)
        if ordered and self.publication is not None:
            self.publication.shared_atomic(self.cta_numbers, mask)
        if ordered and self.races is not None:
            index = self.shared.index(address, size, mask, site)
            self.races.synchronise(index, size, mask, site, acquires=True, releases=False)
        if ordered and self.shared.lane_order is not None:
            self.shared.lane_order.atomic(mask)
        return _split_words(words, code, count)

    def store_shared(
        self,
        address: Array,
        code: str,
        values: Sequence[Array],
        mask: Array | None,
        site: int,
        ordered: bool = False,
    ) -> None:
        """Stores elements at shared addresses; ``ordered`` stands for ``st.release``."""
        size = CODE_BITS[code] // 8 * len(values)
        self.traffic.shared_written_bytes += size * self.lane_count(mask)
        self.shared.scatter(address, _pack_words(values, code, size), size, mask, site, release=ordered)
        if ordered and self.publication is not None:
            self.publication.shared_atomic(self.cta_numbers, mask)

    def load_global(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        """Elements at global addresses."""
        size = CODE_BITS[code] // 8 * count
        self.traffic.global_read_bytes += size * self.lane_count(mask)
        return _split_words(self.gather_global(address, size, mask, site), code, count)

    def store_global(self, address: Array, code: str, values: Sequence[Array], mask: Array | None, site: int) -> None:
        """Stores elements at global addresses."""
        size = CODE_BITS[code] // 8 * len(values)
        self.traffic.global_written_bytes += size * self.lane_count(mask)
        self.scatter_global(address, _pack_words(values, code, size), size, mask, site)

    def gather_global(self, address: Array, size: int, mask: Array | None, site: int) -> Array:
        """Words at global addresses; all reads but those of atomics."""
        words = self.memory.gather(address, size, mask, site)
        if self.publication is not None:
            self.publication.load(self.cta_numbers, address, size, mask, site)
        if self.shared.lane_order is not None:
            index = self.memory.index(address, size, mask, site)
            self.shared.lane_order.load_global(self.cta_numbers, index, size, mask, site)
        return words

    def scatter_global(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Stores words at global addresses; all writes but those of atomics."""
        if self.publication is not None:
            self.publication.store(self.cta_numbers, address, words, size, mask, site)
        if self.shared.lane_order is not None:
            index = self.memory.index(address, size, mask, site)
            self.shared.lane_order.store_global(self.cta_numbers, index, words, size, mask, site)
        self.memory.scatter(address, words, size, mask, site)
        if self.publication is not None and not self.publication.is_strong(site):
            self.memory.require_stored(address, words, size, mask, site)

    @functools.cached_property
    def _local(self) -> LocalMemory:
        return LocalMemory(self.ctas, self.threads, self._local_bytes)

    def load_local(self, address: Array, code: str, count: int, mask: Array | None, site: int) -> Any:
        """Elements at addresses of each thread's local memory."""
        size = CODE_BITS[code] // 8 * count
        self.traffic.local_bytes += size * self.lane_count(mask)
        return _split_words(self._local.load(address, size, mask, site), code, count)

    def store_local(self, address: Array, code: str, values: Sequence[Array], mask: Array | None, site: int) -> None:
        """Stores elements in each thread's local memory."""
        size = CODE_BITS[code] // 8 * len(values)
        self.traffic.local_bytes += size * self.lane_count(mask)
        self._local.store(address, _pack_words(values, code, size), size, mask, site)

    def _windows(self, address: Array) -> tuple[Array, Array]:
        high = address >> np.uint64(32)
        return high == np.uint64(SHARED_WINDOW >> 32), high == np.uint64(LOCAL_WINDOW >> 32)

    def load_generic(
        self, address: Array, code: str, count: int, mask: Array | None, site: int, ordered: bool = False
    ) -> Any:
        """Elements at generic addresses; each lane may address another state space."""
        active = self.alive if mask is None else mask
        high = address >> np.uint64(32)
        out: Any = None
        rest = active
        for window, load in (
            (SHARED_WINDOW, functools.partial(self.load_shared, ordered=ordered)),
            (LOCAL_WINDOW, self.load_local),
            (PARAM_WINDOW, self.load_param),
        ):
            lanes = (high == np.uint64(window >> 32)) & active
            if lanes.any():
                near = shared_address(address) if window == SHARED_WINDOW else address - np.uint64(window)
                part = load(near, code, count, lanes, site)
                out = part if out is None else np.where(lanes, part, out)
                rest = rest & ~lanes
        if out is None:
            return self.load_global(address, code, count, mask, site)
        return np.where(rest, self.load_global(address, code, count, rest, site), out) if rest.any() else out

    def store_generic(
        self,
        address: Array,
        code: str,
        values: Sequence[Array],
        mask: Array | None,
        site: int,
        ordered: bool = False,
    ) -> None:
        """Stores elements at generic addresses."""
        shared, local = self._windows(address)
        if not shared.any() and not local.any():
            self.store_global(address, code, values, mask, site)
            return
        active = self.alive if mask is None else mask
        if (shared & active).any():
            self.store_shared(shared_address(address), code, values, shared & active, site, ordered)
        if (local & active).any():
            self.store_local(address - np.uint64(LOCAL_WINDOW), code, values, local & active, site)
        if (~shared & ~local & active).any():
            self.store_global(address, code, values, ~shared & ~local & active, site)

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
        """Executes an atomic on shared or global memory; returns the word that each lane read."""
        if space == "generic":
            shared, _ = self._windows(address)
            active = self.alive if mask is None else mask & self.alive
            if (shared & active).any():
                if (~shared & active).any():
                    raise SiteFault(
                        FaultKind.ILLEGAL_VALUE, "a generic atomic with lanes in both shared and global memory", site
                    )
                space, address = "shared", shared_address(address)
            else:
                space = "global"
        size = CODE_BITS[code] // 8
        shape = (self.ctas, self.threads)
        mask = None if mask is None else mask & self.alive

        def run(words: Array, index: Array, lanes: Array | None) -> Array:
            return atomics.apply(words, index, operation, kind, code, values, lanes, backwards=self.reverses_atomics)

        moved = size * self.lane_count(mask)
        if space == "shared":
            self.traffic.shared_read_bytes += moved
            if self.publication is not None:
                self.publication.shared_atomic(self.cta_numbers, mask)
            self.shared.gather(address, size, mask, site, atomic=True)
            self.shared.note_atomic(address, size, mask, site)
            self.shared.separate_contents()
            index = self.shared.index(address, size, mask, site) + self.shared.row[size]
            return run(self.shared.words[size].reshape(-1), np.broadcast_to(index, shape), mask)
        self.traffic.global_written_bytes += moved
        self.memory.gather(address, size, mask, site)
        found = self.memory.update(address, size, mask, site, shape, run)
        if self.shared.lane_order is not None:
            self.shared.lane_order.atomic(mask)
        if self.publication is not None:
            writes = atomics.changes(operation, found, values)
            self.publication.atomic(self.cta_numbers, address, size, mask, site, writes)
        return found

    def copy_async(
        self, target: Array, source: Array, size: int, keep: Array | None, mask: Array | None, site: int
    ) -> None:
        """Issues ``cp.async``. Bytes from ``keep`` on are zero-filled and not read; None copies all ``size`` bytes."""
        self.traffic.cp_async_bytes += size * self.lane_count(mask)
        if keep is not None and ((above := (keep > size) & self.lanes(mask)).any()):
            cta, lane = np.unravel_index(int(above.argmax()), above.shape)
            detail = f"cp.async of {size} bytes with a larger source size"
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(cta), int(lane))
        if keep is None or (keep == size).all():
            words = self.gather_global(source, size, mask, site)
        else:
            words = self._partial(source, size, keep, mask, site)
        self.copies.issue(target, words, size, mask, site)

    def _partial(self, source: Array, size: int, keep: Array, mask: Array | None, site: int) -> Array:
        whole, some = keep >= size, (keep > 0) & (keep < size)
        if mask is not None:
            whole, some = whole & mask, some & mask
        words: Array = np.zeros((1, 1), WORD[size])
        if whole.any():
            found = self.gather_global(source, size, whole, site)
            nothing = found.size == 1 and found.tobytes() == words.tobytes()  # copied and filled-in words are all zero
            words = words if nothing else np.where(whole, found, words)
        if some.any():
            shape = np.broadcast_shapes(source.shape, keep.shape, (self.ctas, self.threads))
            raw = np.zeros((*shape, size), np.uint8)
            for byte in range(size):
                lanes = some & (keep > byte)
                if lanes.any():
                    raw[..., byte] = np.where(lanes, self.gather_global(source + np.uint64(byte), 1, lanes, site), 0)
            words = np.where(some, raw.view(WORD[size])[..., 0], words)
        return words

    def load_matrices(self, address: Array, count: int, transpose: bool, mask: Array | None, site: int) -> Array:
        self.traffic.shared_read_bytes += 4 * count * self.lane_count(mask)
        return load_matrices(self.shared, address, count, transpose, mask, site)

    def store_matrices(
        self, address: Array, values: Sequence[Array], transpose: bool, mask: Array | None, site: int
    ) -> None:
        self.traffic.shared_written_bytes += 4 * len(values) * self.lane_count(mask)
        store_matrices(self.shared, address, values, transpose, mask, site)
