"""A batch of CTAs, on which generated code, which calls it ``X``, loads and stores in every state space."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from evoengine.emulator.arrays import CODE_BITS, Array, CtaRows, restricted
from evoengine.emulator.batch.local_memory import LocalMemory
from evoengine.emulator.batch.matrices import load_matrices, store_matrices
from evoengine.emulator.batch.special_registers import LaunchShape
from evoengine.emulator.batch.state import AsyncSettings, BatchChecks, BatchState
from evoengine.emulator.batch.traffic import Traffic
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.address_space import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, shared_address
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.words import WORD
from evoengine.emulator.semantics.atomics import Atomic


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


class Batch(BatchState):
    """State of the CTAs that run together, except registers, with access to all memories.

    Masks and ``site`` are those of :class:`~evoengine.emulator.batch.state.BatchState`. Dtype codes are those of
    :mod:`evoengine.emulator.arrays`.

    Args:
        shape: Sizes of the launch.
        params: Parameter block of the launch.
        ctas: Linear CTA numbers of the batch.
        checks: Checks of the batch.
        asynchrony: Settings of asynchronous operations.
        memory: Global memory.
        symbols: Addresses of module variables.
        traffic: Byte counters of the launch; updated in place.
    """

    def __init__(
        self,
        shape: LaunchShape,
        params: bytes,
        ctas: Array,
        checks: BatchChecks,
        asynchrony: AsyncSettings,
        memory: GlobalMemory,
        symbols: dict[str, int],
        traffic: Traffic,
    ) -> None:
        super().__init__(shape, params, ctas, checks, asynchrony)
        self.memory = memory
        self.traffic = traffic
        self.reverses_atomics = False
        """Whether atomics of one instruction execute in the reverse order of the lanes of a CTA."""
        self._param_cache: dict[tuple[int, str, int], Any] = {}
        self._symbols = symbols
        self._local_bytes = (shape.local_bytes + 15) // 16 * 16

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the batch to some of the CTAs, without changing state shared with a shallow copy of it."""
        if "_local" in self.__dict__:
            self._local = restricted(self._local, rows)
        super().restrict(rows)

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

    def bytes_at(self, address: int, count: int, site: int) -> bytes:
        """Bytes at a generic address in parameters or global memory."""
        if address >> 32 == PARAM_WINDOW >> 32:
            offset = address - PARAM_WINDOW
            return self._params[offset : offset + count]
        every = np.arange(count, dtype=np.uint64)[None, :] + np.uint64(address)
        found: Array = np.broadcast_to(self.memory.gather(every, 1, None, site), every.shape)
        return found.tobytes()

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

    def atomic(self, space: str, address: Array, atomic: Atomic, mask: Array | None, site: int) -> Array:
        """Executes an atomic on shared or global memory; returns the word that each lane read."""
        mask = None if mask is None else mask & self.alive
        if space == "generic":
            shared, _ = self._windows(address)
            active = self.alive if mask is None else mask
            space = "shared" if (shared & active).any() else "global"
            if space == "shared":
                if (~shared & active).any():
                    detail = "a generic atomic with lanes in both shared and global memory"
                    raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site)
                address = shared_address(address)
        run = self.shared_atomic if space == "shared" else self.global_atomic
        return run(address, atomic, mask, site)

    def shared_atomic(self, address: Array, atomic: Atomic, mask: Array | None, site: int) -> Array:
        """Executes an atomic at shared addresses."""
        size = atomic.size
        self.traffic.shared_read_bytes += size * self.lane_count(mask)
        if self.publication is not None:
            self.publication.shared_atomic(self.cta_numbers, mask)
        self.shared.gather(address, size, mask, site, atomic=True)
        self.shared.note_atomic(address, size, mask, site)
        self.shared.separate_contents()
        index = self.shared.index(address, size, mask, site) + self.shared.row[size]
        every = np.broadcast_to(index, (self.ctas, self.threads))
        return atomic.apply(self.shared.words[size].reshape(-1), every, mask, backwards=self.reverses_atomics)

    def global_atomic(self, address: Array, atomic: Atomic, mask: Array | None, site: int) -> Array:
        """Executes an atomic at global addresses."""
        size = atomic.size
        self.traffic.global_written_bytes += size * self.lane_count(mask)
        self.memory.gather(address, size, mask, site)
        run = functools.partial(atomic.apply, backwards=self.reverses_atomics)
        found = self.memory.update(address, size, mask, site, (self.ctas, self.threads), run)
        if self.shared.lane_order is not None:
            self.shared.lane_order.atomic(mask)
        if self.publication is not None:
            self.publication.atomic(self.cta_numbers, address, size, mask, site, atomic.changes(found))
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
