"""What a config is expected to cost, from the config and the problem alone: no source, no compiler, no execution.

The counts that the emulator would find follow from a family's algorithm: how many key tiles a warp walks over, and how
many mma, ldmatrix, exponentials, copies and barriers a tile takes. The latency model then is the same as for executed
kernels. Registers are estimates of what is live, so spills and occupancy are estimates too. A prediction takes well
below a millisecond; it orders a queue, it is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from evoengine.emulator.latency import FITTED, Constants, Demand, estimate_us
from evoengine.emulator.prospect_mma import MmaCounts
from evoengine.emulator.prospect_names import FamilyCounts, Names, Setting
from evoengine.emulator.prospect_scalar import ScalarCounts
from evoengine.emulator.prospect_wmma import WmmaCounts
from evoengine.kernel.resources import Occupancy, occupancy
from evoengine.model import Config, Problem, Resources, Value
from evoengine.space.space import SearchSpace, problem_scope
from evoengine.space.support import support_of
from evoengine.target import Target

_FAMILIES: Final[Mapping[str, FamilyCounts]] = {"mma": MmaCounts(), "scalar": ScalarCounts(), "wmma": WmmaCounts()}


class Prospect:
    """Expected times of one family's configs.

    Args:
        space: the family's search space, as its file defines it.
        problem: what is to be computed.
        target: the GPU.
        constants: of the latency model.
    """

    def __init__(self, space: SearchSpace, problem: Problem, target: Target, constants: Constants = FITTED) -> None:
        self._space = space
        self._setting = Setting(problem, target, constants)
        self._counts = _FAMILIES[space.family]
        self._given = {**problem_scope(problem), **target.scope()}
        self._first = {tunable.name: tunable.values[0] for tunable in space.tunables}
        self._unique_bytes = problem.min_bytes
        self._rooms: dict[tuple[int, int, int], Occupancy] = {}
        self._read = tuple(_tunables_behind(space, self._counts.needed))
        self._known_us: dict[tuple[Value, ...], float] = {}

    @staticmethod
    def covers(space: SearchSpace, problem: Problem) -> bool:
        """Whether there are analytic counts: for families as they ship, and problems that their counts know."""
        counts = _FAMILIES.get(space.family)
        known = {tunable.name for tunable in space.tunables} | {derived.name for derived in space.derived}
        return counts is not None and known >= counts.needed and counts.covers(problem)

    def us(self, config: Config) -> float:
        """Expected device time, in microseconds; infinite where no CTA is expected to fit on an SM.

        Remembered by the values that it follows from: of the configs that a search asks about, a quarter differ from
        one before only in others.

        Raises:
            UsageError: one of these values is not of this space.
        """
        values = self._values(config)
        read = tuple([values[name] for name in self._read])
        us = self._known_us.get(read)
        if us is None:
            us = self._known_us[read] = self._computed_us(self._names(config))
        return us

    def _computed_us(self, names: Names) -> float:
        setting = self._setting
        registers, _ = self._counts.registers(names)
        room = self._room(registers, names["SMEM_BYTES"], names["THREADS"])
        if room.blocks_per_sm == 0:
            return math.inf
        asked = self._counts.demand(names, setting)
        us = estimate_us(asked, room, setting.target, unique_bytes=self._unique_bytes, constants=setting.constants)
        return us + self._counts.further_us(names, setting)

    def demand(self, config: Config) -> Demand:
        """The counts behind :meth:`us`, of the main launch.

        Raises:
            UsageError: the config is not of this space.
        """
        return self._counts.demand(self._names(config), self._setting)

    def kind(self, config: Config) -> tuple[Value, ...]:
        """How a config cuts the work, which decides most of its time: configs that agree in it err alike."""
        return tuple(config[name] for name in self._counts.cut if name in config)

    def _room(self, registers: int, smem_bytes: int, threads: int) -> Occupancy:
        """Resident CTAs; remembered, since many configs need the same."""
        needs = (registers, smem_bytes, threads)
        if needs not in self._rooms:
            self._rooms[needs] = occupancy(Resources(registers, 0, 0, 0, smem_bytes, threads), self._setting.target)
        return self._rooms[needs]

    def _names(self, config: Config) -> Names:
        return Names.of(self._space.scope_beside(self._given, self._values(config)))

    def _values(self, config: Config) -> dict[str, Value]:
        """Of a config that was recorded before a tunable was added, that one stays at its first value."""
        return self._first | config.as_dict()


def _tunables_behind(space: SearchSpace, names: Iterable[str]) -> list[str]:
    """The tunables that some tunables and derived values follow from."""
    behind = {name for one in names for name in support_of(one, space.derived).names}
    return [tunable.name for tunable in space.tunables if tunable.name in behind]
