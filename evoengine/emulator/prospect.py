"""What a config is expected to cost, from the config and the problem alone: no source, no compiler, no execution.

The counts that the emulator would find follow from a family's algorithm: how many key tiles a warp walks over, and how
many mma, ldmatrix, exponentials, copies and barriers a tile takes. The latency model then is the same as for executed
kernels. Registers are estimates of what is live, so spills and occupancy are estimates too. A prediction takes well
below a millisecond; it orders a queue, it is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from evoengine.emulator.latency import FITTED, Constants, Demand, estimate
from evoengine.emulator.prospect_mma import MmaCounts
from evoengine.emulator.prospect_names import FamilyCounts, Names, Setting
from evoengine.emulator.prospect_scalar import ScalarCounts
from evoengine.emulator.prospect_wmma import WmmaCounts
from evoengine.kernel.resources import occupancy
from evoengine.model import Config, Problem, Resources, Value
from evoengine.space.space import SearchSpace, problem_scope
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

    @staticmethod
    def covers(space: SearchSpace, problem: Problem) -> bool:
        """Whether there are analytic counts: for families as they ship, and problems that their counts know."""
        counts = _FAMILIES.get(space.family)
        known = {tunable.name for tunable in space.tunables} | {derived.name for derived in space.derived}
        return counts is not None and known >= counts.needed and counts.covers(problem)

    def us(self, config: Config) -> float:
        """Expected device time, in microseconds; infinite where no CTA is expected to fit on an SM.

        Raises:
            UsageError: the config is not of this space.
        """
        names, setting = self._names(config), self._setting
        registers, spilled = self._counts.registers(names)
        resources = Resources(
            registers=registers,
            spill_bytes=8 * spilled,
            stack_bytes=0,
            static_smem_bytes=0,
            dynamic_smem_bytes=names["SMEM_BYTES"],
            threads=names["THREADS"],
        )
        room = occupancy(resources, setting.target)
        if room.blocks_per_sm == 0:
            return math.inf
        asked = self._counts.demand(names, setting)
        unique_bytes = setting.problem.min_bytes
        found = estimate(asked, room, setting.target, unique_bytes=unique_bytes, constants=setting.constants)
        return found.us + self._counts.further_us(names, setting)

    def demand(self, config: Config) -> Demand:
        """The counts behind :meth:`us`, of the main launch.

        Raises:
            UsageError: the config is not of this space.
        """
        return self._counts.demand(self._names(config), self._setting)

    def kind(self, config: Config) -> tuple[Value, ...]:
        """How a config cuts the work, which decides most of its time: configs that agree in it err alike."""
        return tuple(config[name] for name in self._counts.cut if name in config)

    def _names(self, config: Config) -> Names:
        """Of a config that was recorded before a tunable was added, that one stays at its first value."""
        values = self._first | config.as_dict()
        return Names(self._space.scope_beside(self._given, values))
