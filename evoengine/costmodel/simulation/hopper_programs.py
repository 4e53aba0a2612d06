"""CTAs of ``hopper`` as programs: a producer that copies tiles, and consumers of 64 rows each or of shared rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evoengine.costmodel.simulation.bulk_copy import box_row_bytes
from evoengine.costmodel.simulation.launch import CopyPath
from evoengine.costmodel.simulation.machine import (
    Copy,
    Drain,
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
class HopperKernel:
    """Properties that determine the phases of a CTA."""

    consumers: int
    tile: Tile
    stages: int
    overlap: bool
    pingpong: bool
    stays: bool
    """Whether a CTA takes several pieces of work."""
    share_qo: bool
    masked: tuple[int, ...]
    """Tiles that a mask or the end of the keys crosses, by query group; they come first."""
    element_bytes: int = 2
    groups: int = 1
    """Key groups: consumers that share query rows and take key tiles in turn."""
    q_slots: int = 1
    beside_values: float = 1.0
    """Share of a tile's exponentials made before the P V of the tile before is waited for."""
    passed: tuple[tuple[int, int], ...] = ()
    """First and last tiles that a query group leaves to the others, by query group; none if empty."""

    @property
    def query_groups(self) -> int:
        return self.consumers // self.groups


@dataclass(frozen=True)
class _Events:
    """Numbers of the events of one CTA."""

    first: int
    consumers: int

    @property
    def q_full(self) -> int:
        return self.first

    @property
    def q_empty(self) -> int:
        return self.first + 1

    @property
    def k_full(self) -> int:
        return self.first + 2

    @property
    def k_empty(self) -> int:
        return self.first + 3

    @property
    def v_full(self) -> int:
        return self.first + 4

    @property
    def v_empty(self) -> int:
        return self.first + 5

    @property
    def ended(self) -> int:
        """Consumers that have ended a piece."""
        return self.first + 6

    @property
    def merged(self) -> int:
        """Consumers that have left their results for the other key groups."""
        return self.first + 7

    def turn(self, consumer: int) -> int:
        return self.first + 8 + consumer

    @property
    def count(self) -> int:
        return 8 + self.consumers


@dataclass(frozen=True)
class HopperPrograms:
    """Programs of the CTAs of an SM.

    Args:
        kernel: Kernel.
        work: Jobs of a warpgroup.
        path: Path of the copies.
        constants: Constants of the simulation.
    """

    kernel: HopperKernel
    work: WarpgroupWork
    path: CopyPath
    constants: SimulationConstants

    def run(self, pieces: Sequence[int], ctas: int) -> Timeline:
        """Simulates CTAs that each compute pieces with these numbers of tiles; consumers mark the end of each piece."""
        return simulate(
            [program for cta in range(ctas) for program in self.of(pieces, cta)],
            ctas * _Events(0, self.kernel.consumers).count,
        )

    def of(self, pieces: Sequence[int], cta: int = 0) -> list[Program]:
        """Returns the programs of one CTA: the producer's and the consumers'."""
        consumers = self.kernel.consumers
        events = _Events(cta * _Events(0, consumers).count, consumers)
        return [
            self._producer(pieces, events, cta),
            *(_Consumer(self, events, index).program(pieces) for index in range(consumers)),
        ]

    def _producer(self, pieces: Sequence[int], events: _Events, cta: int) -> Program:
        kernel, constants, path = self.kernel, self.constants, self.path
        row_bytes = box_row_bytes(kernel.tile.head_dim * kernel.element_bytes)
        tile_clocks = kernel.tile.keys * row_bytes / path.bytes_per_clk
        query_clocks = kernel.query_groups * ROWS * row_bytes / path.bytes_per_clk
        yield Run(make_job(constants.start + cta * constants.stagger))
        loaded = 0  # tiles of all pieces
        for number, tiles in enumerate(pieces):
            if number and not kernel.stays:  # a new CTA
                yield Wait(events.ended, number * kernel.consumers)
                yield Run(make_job(constants.start))
            yield Wait(events.q_empty, (number + 1 - kernel.q_slots) * kernel.consumers)
            yield Copy(query_clocks, constants.copy_latency, events.q_full)
            for is_key, index in _order_of_copies(tiles, kernel.groups):
                empty, full = (events.k_empty, events.k_full) if is_key else (events.v_empty, events.v_full)
                yield Wait(empty, (loaded + index + 1 - kernel.stages) * kernel.query_groups)
                yield Copy(tile_clocks, constants.copy_latency + path.miss_clocks, full)
            loaded += tiles


def _order_of_copies(tiles: int, groups: int) -> Iterator[tuple[bool, int]]:
    """Yields the copies of a piece in their order: whether it is a tile of K, and the number of the tile.

    V follows the K of the next tile; with key groups, the tiles of all groups come in rounds, first K and then V.
    """
    if groups == 1:
        for index in range(tiles + 1):
            if index < tiles:
                yield True, index
            if index > 0:
                yield False, index - 1
        return
    for first in range(0, tiles, groups):
        for is_key in (True, False):
            for index in range(first, min(first + groups, tiles)):
                yield is_key, index


class _Consumer:
    """Program of one consumer."""

    def __init__(self, programs: HopperPrograms, events: _Events, index: int) -> None:
        kernel, work, constants = programs.kernel, programs.work, programs.constants
        self._kernel = kernel
        self._events = events
        self._index = index
        self._group = index // kernel.query_groups
        self._work = work
        self._scores, self._values = Product(work.scores()), Product(work.values())
        self._plain, self._masked = work.maxima(), work.maxima(masked=True)
        beside = kernel.tile.keys * kernel.beside_values
        self._beside_values = work.run(work.exponentials(beside))
        self._after_values = work.run(work.exponentials(kernel.tile.keys - beside), work.pack())
        self._softmax = work.run(work.exponentials(), work.pack())
        self._end = work.end()
        self._stored = Run(make_job(constants.end_latency))
        self._exchange = Run(make_job(constants.exchange_latency))
        self._wake, self._result = Run(make_job(constants.sync)), Run(make_job(constants.product_latency))
        self._turns = 0
        self._before = 0
        """Tiles of the pieces before."""

    def program(self, pieces: Sequence[int]) -> Program:
        """Returns the operations of all pieces."""
        kernel, events = self._kernel, self._events
        shares = kernel.share_qo and kernel.stays
        groups = kernel.groups
        if kernel.pingpong and self._index == kernel.consumers - 1:
            yield Signal(events.turn(0))
        for number, tiles in enumerate(pieces):
            yield Wait(events.q_full, number + 1)
            own = self._own(tiles)
            first, end = self._seen_tiles(tiles)
            if first < end:
                yield from self._pass(range(first))
                yield from self._attend(first, end)
                yield from self._pass(range(end, own))
            else:
                yield from self._pass(range(own))
            if own * groups < tiles:  # the other consumers wait for this turn
                yield from self._turn()
                yield from self._end_turn()
            self._before += tiles
            if not shares:
                yield Signal(events.q_empty)
            if groups > 1:
                yield self._work.leave_partial(groups)
                yield Signal(events.merged)
                yield Wait(events.merged, (number + 1) * kernel.consumers)
                yield self._exchange
                yield self._work.merge()
            yield self._end
            if shares:  # Q's bytes are free when O has left them
                yield self._stored
                yield Signal(events.q_empty)
            yield Mark()
            yield Signal(events.ended)

    def _full(self, tile: int) -> int:
        """Number of tiles that the rings have received once this consumer's tile is there."""
        return self._before + self._group + tile * self._kernel.groups + 1

    def _own(self, tiles: int) -> int:
        """How many of the first tiles of a piece are this key group's."""
        return max(0, -(-(tiles - self._group) // self._kernel.groups))

    def _seen_tiles(self, tiles: int) -> tuple[int, int]:
        """The range of this key group's tiles that the consumer's rows see."""
        kernel = self._kernel
        front, back = kernel.passed[self._index % kernel.query_groups] if kernel.passed else (0, 0)
        return self._own(min(front, tiles)), self._own(max(0, tiles - back))

    def _pass(self, tiles: range) -> Program:
        """Leaves tiles, and the turns of ping-pong that go with them, to the other consumers."""
        events = self._events
        for tile in tiles:
            yield Wait(events.k_full, self._full(tile))
            yield Signal(events.k_empty)
            yield from self._turn()
            yield from self._end_turn()
            yield Wait(events.v_full, self._full(tile))
            yield Signal(events.v_empty)

    def _attend(self, first: int, end: int) -> Program:
        events = self._events
        yield Wait(events.k_full, self._full(first))
        yield self._wake
        yield from self._turn()
        yield self._scores
        yield from self._end_turn()
        yield Drain()
        yield self._result
        yield Signal(events.k_empty)
        yield self._maxima(first)
        yield self._softmax
        for tile in range(first + 1, end):
            yield from self._overlapped(tile) if self._kernel.overlap else self._serial(tile)
        yield Wait(events.v_full, self._full(end - 1))
        yield self._wake
        yield self._values
        yield Drain()
        yield self._result
        yield Signal(events.v_empty)

    def _overlapped(self, tile: int) -> Program:
        """Computes the scores of a tile, and P V of the previous tile beside its softmax."""
        events = self._events
        yield Wait(events.k_full, self._full(tile))
        yield self._wake
        yield from self._turn()
        yield self._scores
        yield Wait(events.v_full, self._full(tile - 1))
        yield self._values
        yield from self._end_turn()
        yield Drain(pending=1)
        yield self._result
        yield Signal(events.k_empty)
        yield self._maxima(tile)
        yield self._beside_values
        yield Drain()
        yield Signal(events.v_empty)
        yield self._after_values

    def _serial(self, tile: int) -> Program:
        """Computes P V of the previous tile and the scores of a tile, then its softmax."""
        events = self._events
        yield Wait(events.v_full, self._full(tile - 1))
        yield Wait(events.k_full, self._full(tile))
        yield self._wake
        yield from self._turn()
        yield self._values
        yield self._scores
        yield from self._end_turn()
        yield Drain()
        yield self._result
        yield Signal(events.k_empty)
        yield Signal(events.v_empty)
        yield self._maxima(tile)
        yield self._softmax

    def _maxima(self, tile: int) -> Run:
        kernel = self._kernel
        place = self._group + tile * kernel.groups
        return self._masked if place < kernel.masked[self._index % kernel.query_groups] else self._plain

    def _turn(self) -> Program:
        if self._kernel.pingpong:
            self._turns += 1
            yield Wait(self._events.turn(self._index), self._turns)

    def _end_turn(self) -> Program:
        if self._kernel.pingpong:
            yield Signal(self._events.turn((self._index + 1) % self._kernel.consumers))
