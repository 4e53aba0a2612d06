"""CTAs of ``wgmma`` as programs: key groups of warpgroups that copy their own tiles and are merged at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evoengine.costmodel.simulation.launch import CopyPath
from evoengine.costmodel.simulation.machine import (
    Copy,
    Drain,
    Job,
    Mark,
    Product,
    Program,
    Run,
    Signal,
    Timeline,
    Wait,
    make_job,
    simulate,
)
from evoengine.costmodel.simulation.warpgroup import ROWS, SimulationConstants, Tile, WarpgroupWork


@dataclass(frozen=True)
class WgmmaKernel:
    """Properties that determine the phases of a CTA."""

    warpgroups: int
    """Warpgroups of a key group."""
    groups: int
    tile: Tile
    stages_k: int
    stages_v: int
    overlap: bool
    exp_with_pv: bool
    pv_keys: int
    peeled: bool
    masked: tuple[int, ...]
    direct: bool = False
    """Whether warps store their fragments of O, instead of rows from shared memory."""
    element_bytes: int = 2

    @property
    def agents(self) -> int:
        return self.warpgroups * self.groups


@dataclass(frozen=True)
class _Events:
    """Numbers of the events of one CTA: three of each key group, then those of the CTA."""

    first: int
    groups: int

    def k_full(self, group: int) -> int:
        return self.first + 3 * group

    def v_full(self, group: int) -> int:
        return self.first + 3 * group + 1

    def barrier(self, group: int) -> int:
        return self.first + 3 * group + 2

    @property
    def q_full(self) -> int:
        return self.first + 3 * self.groups

    @property
    def cta(self) -> int:
        return self.first + 3 * self.groups + 1

    @property
    def count(self) -> int:
        return 3 * self.groups + 2


@dataclass(frozen=True)
class WgmmaPrograms:
    """Programs of the CTAs of an SM.

    Args:
        kernel: Kernel.
        work: Jobs of a warpgroup.
        path: Path of the copies.
        constants: Constants of the simulation.
    """

    kernel: WgmmaKernel
    work: WarpgroupWork
    path: CopyPath
    constants: SimulationConstants

    def run(self, pieces: Sequence[int], ctas: int) -> Timeline:
        """Simulates CTAs that each compute pieces with these numbers of tiles; warpgroups mark their ends."""
        return simulate(
            [program for cta in range(ctas) for program in self.of(pieces, cta)],
            ctas * _Events(0, self.kernel.groups).count,
        )

    def of(self, pieces: Sequence[int], cta: int = 0) -> list[Program]:
        """Returns the programs of one CTA's warpgroups."""
        groups = self.kernel.groups
        events = _Events(cta * _Events(0, groups).count, groups)
        return [
            _Warpgroup(self, events, group, index).program(pieces, cta * self.constants.stagger)
            for group in range(groups)
            for index in range(self.kernel.warpgroups)
        ]


class _Warpgroup:
    """Program of one warpgroup."""

    def __init__(self, programs: WgmmaPrograms, events: _Events, group: int, index: int) -> None:
        kernel, work, constants = programs.kernel, programs.work, programs.constants
        path = programs.path
        self._kernel = kernel
        self._work = work
        self._events = events
        self._group = group
        self._index = index
        self._constants = constants
        self._barriers = 0
        self._cta_barriers = 0
        self._copied_k = 0
        self._copied_v = 0
        self._before = 0
        """Tiles of the pieces before."""
        row_bytes = -(-kernel.tile.head_dim // 64) * 64 * kernel.element_bytes
        tile_bytes = kernel.tile.keys * row_bytes / kernel.warpgroups
        self._tile_clocks = tile_bytes / path.bytes_per_clk
        query_bytes = kernel.warpgroups * ROWS * row_bytes / kernel.agents
        self._query_clocks = query_bytes / path.bytes_per_clk
        self._latency = constants.load_latency + path.miss_clocks
        self._issue_copy = work.copies(tile_bytes)
        self._wake = Run(make_job(constants.load_sync))
        self._product = Run(make_job(constants.product_latency))

    def program(self, pieces: Sequence[int], start: float) -> Program:
        """Returns the operations of all pieces; the first begins ``start`` clocks after the simulation."""
        constants, kernel = self._constants, self._kernel
        yield Run(make_job(start))
        for number, tiles in enumerate(pieces):
            own = max(0, -(-(tiles - self._group) // kernel.groups))
            yield Run(make_job(constants.start))
            yield Copy(self._query_clocks, constants.load_latency, self._events.q_full)
            assert self._copied_k == self._copied_v
            self._before = self._copied_k
            for stage in range(max(kernel.stages_k, kernel.stages_v)):
                if stage < kernel.stages_k:
                    yield from self._copy_k(stage, own)
                if stage < kernel.stages_v:
                    yield from self._copy_v(stage, own)
            yield Wait(self._events.q_full, (number + 1) * kernel.agents)
            if own > 0:
                yield from self._overlapped(own) if kernel.overlap else self._serial(own)
            yield from self._end()
            yield Mark()

    def _copy_k(self, tile: int, tiles: int) -> Program:
        if tile < tiles:
            self._copied_k += 1
            yield self._issue_copy
            yield Copy(self._tile_clocks, self._latency, self._events.k_full(self._group))

    def _copy_v(self, tile: int, tiles: int) -> Program:
        if tile < tiles:
            self._copied_v += 1
            yield self._issue_copy
            yield Copy(self._tile_clocks, self._latency, self._events.v_full(self._group))

    def _barrier(self) -> Program:
        """Waits for the warpgroups of the key group."""
        self._barriers += 1
        yield self._wake
        if self._kernel.warpgroups > 1:
            yield Signal(self._events.barrier(self._group))
            yield Wait(self._events.barrier(self._group), self._barriers * self._kernel.warpgroups)

    def _cta_barrier(self) -> Program:
        self._cta_barriers += 1
        yield self._wake
        yield Signal(self._events.cta)
        yield Wait(self._events.cta, self._cta_barriers * self._kernel.agents)

    def _k_is_there(self, tile: int) -> Wait:
        return Wait(self._events.k_full(self._group), (self._before + tile + 1) * self._kernel.warpgroups)

    def _v_is_there(self, tile: int) -> Wait:
        return Wait(self._events.v_full(self._group), (self._before + tile + 1) * self._kernel.warpgroups)

    def _masks(self, tile: int, tiles: int) -> bool:
        """Whether a mask crosses a tile; the direction of the walk does not matter for the time."""
        return tiles - 1 - tile < -(-self._kernel.masked[self._index] // self._kernel.groups)

    def _serial(self, tiles: int) -> Program:
        kernel, work = self._kernel, self._work
        scores, plain, masked = work.scores(), work.maxima(), work.maxima(masked=True)
        exponentials = work.exponentials()
        chunks = self._chunks()
        for tile in range(tiles):
            yield self._k_is_there(tile)
            yield from self._barrier()
            if tile > 0:
                yield from self._copy_v(tile - 1 + kernel.stages_v, tiles)
            yield Product(scores)
            yield Drain()
            yield self._product
            yield masked if self._masks(tile, tiles) else plain
            yield work.run(*([] if kernel.exp_with_pv else [exponentials]))
            yield self._v_is_there(tile)
            yield from self._barrier()
            yield from self._copy_k(tile + kernel.stages_k, tiles)
            for softmax, values in chunks:
                yield softmax
                yield Product(values)
            yield Drain()
            yield self._product

    def _chunks(self) -> list[tuple[Run, Job]]:
        """Exponentials, conversions and product of the keys that are started together."""
        keys, step = self._kernel.tile.keys, min(self._kernel.pv_keys, self._kernel.tile.keys)
        sizes = [min(step, keys - first) for first in range(0, keys, step)]
        work = self._work
        found = []
        for size in sizes:
            parts = [work.pack(size), *([work.exponentials(size)] if self._kernel.exp_with_pv else [])]
            found.append((work.run(*parts), work.values(size)))
        return found

    def _overlapped(self, tiles: int) -> Program:
        kernel, work = self._kernel, self._work
        scores, values = Product(work.scores()), Product(work.values())
        plain, masked = work.maxima(), work.maxima(masked=True)
        beside, after = work.run(work.exponentials()), work.run(work.pack())
        first = work.run(work.exponentials(), work.pack())
        for tile in range(tiles + 1):
            if tile < tiles:
                yield self._k_is_there(tile)
                yield from self._barrier()
                if tile > 0:
                    yield from self._copy_k(tile - 1 + kernel.stages_k, tiles)
                    if tile > 1:
                        yield from self._copy_v(tile - 2 + kernel.stages_v, tiles)
                yield scores
            if tile > 0:
                yield self._v_is_there(tile - 1)
                yield from self._barrier()
                yield values
            yield Drain(int(0 < tile < tiles))
            yield self._product
            if tile == tiles:
                break
            yield masked if self._masks(tile, tiles) else plain
            if tile > 0:
                yield beside
                yield Drain()
                yield after
            else:
                yield first

    def _end(self) -> Program:
        kernel, work = self._kernel, self._work
        if kernel.groups > 1:
            yield work.leave_partial(kernel.groups)
            yield from self._cta_barrier()
            yield work.merge()
        yield work.end(direct=kernel.direct)
        yield from self._cta_barrier()
