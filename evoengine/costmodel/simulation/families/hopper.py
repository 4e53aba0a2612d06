"""Programs of the family ``hopper``: a producer that copies tiles, and consumers that compute 64 rows or share them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np

from evoengine.costmodel.family_counts import KernelFacts, Setting, merge_threads
from evoengine.costmodel.key_tiles import (
    is_bounded_right,
    masked_share,
    masked_tiles,
    packed_heads,
    passed_tiles,
    tile_counts,
)
from evoengine.costmodel.l2_cache import miss_clocks
from evoengine.costmodel.simulation.bulk_copy import box_row_bytes
from evoengine.costmodel.simulation.launch import REMEMBERED, CopyPath, Order, Pieces, SimulatedLaunch, simulate_launch
from evoengine.costmodel.simulation.machine import (
    Copy,
    Drain,
    Mark,
    Product,
    Program,
    Resource,
    Run,
    Signal,
    Timeline,
    Wait,
    busy_clocks,
    make_job,
    simulate,
)
from evoengine.costmodel.simulation.schedule import Array
from evoengine.costmodel.simulation.warpgroup import ROWS, SimulationConstants, Tile, WarpgroupWork
from evoengine.model import Problem, Value

_TOGETHER: Final = {False: (2, 4), True: (8, 1)}
"""Splits and rows whose partial results a thread loads at once: of a shared last round, and of splits."""
_PARTIAL_BYTES: Final = 4
_LINE_BYTES: Final = 64
_WARPGROUP_THREADS: Final = 128


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
            if own * groups < tiles:  # the others count on this turn
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
        """Tiles of the rings that are there when this consumer's tile is."""
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
        """The scores of a tile, with the values of the tile before beside its softmax."""
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
        """The values of the tile before and the scores of a tile, then its softmax."""
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


_ORDERS: Final[Mapping[str, Order]] = {"static": "first free", "dynamic": "tickets", "persistent": "rounds"}


class HopperSimulation:
    """Predicts the shipped kernels of the family."""

    needed: ClassVar = frozenset(
        (
            "CONSUMERS",
            "BLOCK_M",
            "BLOCK_N",
            "SCHEDULE",
            "HEAD_GROUP",
            "CTAS_PER_SM",
            "STAGES",
            "SHARE_QO",
            "Q_SOURCE",
            "OVERLAP",
            "PINGPONG",
            "EXP2_POLY",
            "SMEM_BYTES",
            "THREADS",
            "ENTRY_REGISTERS",
        )
    )
    defaults: ClassVar[Mapping[str, Value]] = {
        "BESIDE_VALUES": 100,
        "KEY_GROUPS": 1,
        "PACK_GQA": False,
        "Q_SLOTS": 1,
        "SHARE_LAST_ROUND": False,
        "SPLIT_WAVES": 0,
        "SPLIT_TILES": 1,
        "RESIDENT_CTAS": 0,
    }
    partition: ClassVar[tuple[str, ...]] = (
        "CONSUMERS",
        "KEY_GROUPS",
        "BLOCK_N",
        "SCHEDULE",
        "CTAS_PER_SM",
        "SPLIT_WAVES",
    )

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._timeline = lru_cache(REMEMBERED)(self._simulated)

    @staticmethod
    def covers(problem: Problem) -> bool:
        return not problem.packed

    def registers(self, names: Mapping[str, Any]) -> tuple[Any, Any]:
        """Registers per thread at the launch, from which the CTAs per SM follow; the space admits no spills."""
        return names["ENTRY_REGISTERS"], names["ENTRY_REGISTERS"] * 0

    def launch(self, names: Mapping[str, Any], facts: KernelFacts) -> SimulatedLaunch:
        """Simulates the main launch of one config."""
        problem, target, constants = self._setting.problem, self._setting.target, self._setting.simulation
        names = {**self.defaults, **names}
        kernel = self._kernel(names, facts.spilled)
        resident = min(facts.ctas_per_sm, int(names["CTAS_PER_SM"])) if kernel.stays else facts.ctas_per_sm
        packed = packed_heads(problem, names)
        rows = kernel.query_groups * (ROWS // packed * packed)
        tiles = tile_counts(problem, problem.seq_q * packed, rows, kernel.tile.keys)

        def run(pieces: Sequence[int], ctas: int, path: CopyPath) -> Timeline:
            return self._timeline(kernel, facts.instructions, path, tuple(pieces), ctas)

        pieces = self._pieces(tiles, names)
        shares = shared_pieces(pieces, names)
        missed = miss_clocks(problem, target, float(pieces.tiles.sum()) * kernel.tile.keys)
        simulated = simulate_launch(run, shares, resident, target, constants.l2_share, missed)
        code = self.issued(names, min(2, int(tiles.max()))) / kernel.consumers  # the first tile is apart from the loop
        merge = 0.0 if shares is pieces else self._merge_clocks(names, len(pieces.tiles), int(tiles.max()))
        if shares is not pieces and names["SHARE_LAST_ROUND"]:
            merge += constants.share_start
        more = code * constants.fetch + merge
        return replace(simulated, clocks=simulated.clocks + more, edges=simulated.edges + more)

    def _merge_clocks(self, names: Mapping[str, Any], pieces: int, tiles: int) -> float:
        """Computes the clocks in which a CTA leaves its partial results and merges those of all that share a piece.

        Args:
            names: Tunables and derived values.
            pieces: Number of pieces of work.
            tiles: Key tiles of the longest.
        """
        problem, constants = self._setting.problem, self._setting.simulation
        together, rows_together = _TOGETHER[bool(names["SPLIT_WAVES"])]
        sharing = _sharing(names, pieces, tiles)
        if sharing.splits == 1 and not names["SPLIT_WAVES"]:  # the last round has pieces of one tile
            return 0.0
        rows = min(int(names["BLOCK_M"]), problem.seq_q * packed_heads(problem, names))
        row_threads = merge_threads(problem.head_dim)
        turns = math.ceil(math.ceil(rows * row_threads / (int(names["THREADS"]) - _WARPGROUP_THREADS)) / rows_together)
        lines = rows * problem.head_dim * sharing.splits * _PARTIAL_BYTES / _LINE_BYTES
        waits = turns * max(1.0, sharing.splits / together)
        merge = waits * constants.split_wait + lines * constants.split_line
        return sharing.parts * constants.split_merge + sharing.merges * merge

    def _simulated(
        self, kernel: HopperKernel, instructions: float, path: CopyPath, pieces: tuple[int, ...], ctas: int
    ) -> Timeline:
        return self._programs(kernel, instructions, path).run(pieces, ctas)

    def issued(self, names: Mapping[str, Any], tiles: int) -> float:
        """Counts the instructions that a scheduler executes for one piece of work."""
        programs = self._programs(self._kernel({**self.defaults, **names}, 0.0), 1.0, CopyPath(1.0)).of([tiles])
        return busy_clocks(programs, Resource.ISSUE) / self._setting.simulation.issue

    def _programs(self, kernel: HopperKernel, instructions: float, path: CopyPath) -> HopperPrograms:
        target, constants = self._setting.target, self._setting.simulation
        return HopperPrograms(kernel, WarpgroupWork(kernel.tile, target, constants, instructions), path, constants)

    def _kernel(self, names: Mapping[str, Any], spilled: float) -> HopperKernel:
        problem = self._setting.problem
        consumers, groups, keys = int(names["CONSUMERS"]), int(names["KEY_GROUPS"]), int(names["BLOCK_N"])
        tile = Tile(
            keys,
            problem.head_dim,
            int(names["EXP2_POLY"]),
            names["Q_SOURCE"] == "registers",
            problem.softcap > 0,
            spilled,
            float(masked_share(problem, keys)),
        )
        return HopperKernel(
            consumers,
            tile,
            int(names["STAGES"]),
            bool(names["OVERLAP"]),
            bool(names["PINGPONG"]),
            names["SCHEDULE"] != "static",
            bool(names["SHARE_QO"]),
            masked_tiles(problem, keys, consumers // groups, packed_heads(problem, names)),
            groups=groups,
            q_slots=int(names["Q_SLOTS"]),
            beside_values=int(names["BESIDE_VALUES"]) / 100,
            passed=self._passed(names, keys, consumers // groups),
        )

    def _passed(self, names: Mapping[str, Any], keys: int, query_groups: int) -> tuple[tuple[int, int], ...]:
        problem = self._setting.problem
        if query_groups == 1 or (not is_bounded_right(problem) and problem.window_left is None):
            return ()
        packed = packed_heads(problem, names)
        return passed_tiles(problem, packed, keys, query_groups, ROWS // packed * packed)

    def _pieces(self, tiles: Array, names: Mapping[str, Any]) -> Pieces:
        """Pieces of work in the order of their numbers."""
        problem = self._setting.problem
        heads = problem.heads * problem.batch // packed_heads(problem, names)
        order = _ORDERS[names["SCHEDULE"]]
        if not is_bounded_right(problem) or problem.window_left is not None:
            return Pieces(np.tile(tiles, heads), order)
        size = heads
        if names["HEAD_GROUP"] > 0:
            head_bytes = problem.seq_kv * problem.head_dim * 2 * problem.dtype.bytes
            shared_by = problem.heads // problem.kv_heads // packed_heads(problem, names)
            fitting = (int(names["HEAD_GROUP"]) << 20) // head_bytes * shared_by
            size = min(max(fitting, 1), heads)
        groups = [min(size, heads - first) for first in range(0, heads, size)]
        return Pieces(
            np.concatenate([np.repeat(tiles[::-1], group) for group in groups]), "snake" if order == "rounds" else order
        )


def shared_pieces(pieces: Pieces, names: Mapping[str, Any]) -> Pieces:
    """Divides the keys of pieces that several CTAs share: all of them, or those of the last round.

    Args:
        pieces: Pieces of work with all their key tiles.
        names: Tunables and derived values of the config.

    Returns:
        What each CTA computes, in order; ``pieces`` itself if none is shared.
    """
    count, resident = len(pieces.tiles), int(names["RESIDENT_CTAS"])
    if names["SPLIT_WAVES"]:
        splits = _splits(names, count, int(pieces.tiles.max()))
        return replace(pieces, tiles=np.repeat(np.ceil(pieces.tiles / splits), splits)) if splits > 1 else pieces
    rest = count % resident if names["SHARE_LAST_ROUND"] else 0
    if rest == 0:
        return pieces
    runs = _runs(rest, int(pieces.tiles[-1]), resident)
    return replace(pieces, tiles=np.concatenate([pieces.tiles[: count - rest], runs.tiles]))


@dataclass(frozen=True)
class _Sharing:
    """How CTAs share pieces of work."""

    splits: float
    """CTAs that share a piece, a mean."""
    parts: float
    """Parts of pieces that CTAs in one slot of an SM leave, at most."""
    merges: float = 1.0
    """Pieces that they merge."""


@dataclass(frozen=True)
class _Runs:
    """Runs of key tiles in which CTAs share the pieces of the last round; a run may cross into the next piece."""

    tiles: Array
    """Key tiles of the parts of pieces: first those that CTAs begin with, then those that they go on with."""
    sharing: _Sharing


@lru_cache(REMEMBERED)
def _runs(pieces: int, length: int, resident: int) -> _Runs:
    """Deals out the key tiles of fewer pieces than CTAs, all of one length, as the kernel does."""
    total = pieces * length
    ctas = min(resident, total)
    bounds = np.arange(ctas + 1) * total // ctas
    first = np.minimum(bounds[1:], (bounds[:-1] // length + 1) * length)
    second = bounds[1:] - first
    order = np.argsort(second == 0, kind="stable")  # second parts belong to the CTAs of the first ones in front
    crossing = int(np.count_nonzero(second))
    tiles = np.concatenate([(first - bounds[:-1])[order], second[order][:crossing]]).astype(np.float64)
    return _Runs(tiles, _Sharing(len(tiles) / pieces, 1 + (crossing > 0)))


def _splits(names: Mapping[str, Any], pieces: int, tiles: int) -> int:
    """Returns the number of CTAs that share a piece of work in a grid of splits."""
    most = int(names["SPLIT_WAVES"]) * int(names["RESIDENT_CTAS"]) // pieces
    return max(1, min(tiles // int(names["SPLIT_TILES"]), most))


def _sharing(names: Mapping[str, Any], pieces: int, tiles: int) -> _Sharing:
    resident = int(names["RESIDENT_CTAS"])
    if not names["SPLIT_WAVES"]:
        return _runs(pieces % resident, tiles, resident).sharing
    splits = _splits(names, pieces, tiles)
    return _Sharing(splits, max(1.0, pieces * splits / resident), max(1.0, pieces / resident))


SIMULATION: Final = HopperSimulation
