"""What a config is expected to cost, from the config and the problem alone: no source, no compiler, no execution.

The counts that the emulator would find follow from a family's algorithm: how many key tiles a warp walks over, and how
many mma, ldmatrix, exponentials, copies and barriers a tile takes. The latency model then is the same as for executed
kernels. Registers are estimates of what is live, so spills and occupancy are estimates too. A prediction takes well
below a millisecond; it orders a queue, it is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.analytic_counts.mma import MmaCounts
from evoengine.costmodel.analytic_counts.names import FamilyCounts, Names, Setting, looked_up
from evoengine.costmodel.analytic_counts.scalar import ScalarCounts
from evoengine.costmodel.analytic_counts.wmma import WmmaCounts
from evoengine.costmodel.latency import FITTED, Constants, Demand, estimate_us
from evoengine.kernel.resources import occupancy
from evoengine.model import Config, Problem, Resources, Value
from evoengine.space.columns import Columns
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.rulebook import RuleBook
from evoengine.space.search_space import SearchSpace, problem_scope
from evoengine.space.tunables import Tunable
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

_REMEMBERED: Final = 2**16
"""Combinations of what CTAs need of an SM."""
_FAMILIES: Final[Mapping[str, type[FamilyCounts]]] = {"mma": MmaCounts, "scalar": ScalarCounts, "wmma": WmmaCounts}


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
        self._counts = _FAMILIES[space.family](self._setting)
        self._given = {**problem_scope(problem), **target.scope()}
        self._first = {tunable.name: tunable.values[0] for tunable in space.tunables}
        self._unique_bytes = problem.min_bytes
        self._resident = lru_cache(_REMEMBERED)(self._ctas_per_sm)
        self._columns: dict[ValidSpace, Columns] = {}

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
        return float(self.us_of([config])[0])

    def us_of(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        """The same for many configs, ``[configs]``: hundreds take little longer than one.

        Raises:
            UsageError: a config is not of this space.
        """
        return self._us(self._names(configs))

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        """The same for configs that are not written out.

        Args:
            space: valid configs of this family.
            rows: of the space, ``[configs, tunables]``.
        """
        if space not in self._columns:
            self._columns[space] = self._columns_for(space.tunables)
        return self._us(self._columns[space].of(rows))

    def demand(self, config: Config) -> Demand:
        """The counts behind :meth:`us`, of the main launch, as arrays of one.

        Raises:
            UsageError: the config is not of this space.
        """
        names = self._names([config])
        return self._counts.demand(names, self._counts.registers(names)[1])

    def kind(self, config: Config) -> tuple[Value, ...]:
        """How a config cuts the work, which decides most of its time: configs that agree in it err alike."""
        return tuple(config[name] for name in self._counts.cut if name in config)

    def _us(self, names: Names) -> npt.NDArray[np.float64]:
        counts, setting = self._counts, self._setting
        registers, spilled = counts.registers(names)
        resident = looked_up(self._resident, registers, names["SMEM_BYTES"], names["THREADS"])
        us = estimate_us(
            counts.demand(names, spilled),
            np.maximum(resident, 1),
            setting.target,
            unique_bytes=self._unique_bytes,
            constants=setting.constants,
        )
        return np.where(resident > 0, us + counts.further_us(names), np.inf)

    def _ctas_per_sm(self, registers: int, smem_bytes: int, threads: int) -> int:
        return occupancy(Resources(registers, 0, 0, 0, smem_bytes, threads), self._setting.target).blocks_per_sm

    def _names(self, configs: Sequence[Config]) -> Names:
        rows = np.array([*map(self._row, configs)], np.uint8).reshape(-1, len(self._space.tunables))
        return self._own_columns.of(rows)

    def _row(self, config: Config) -> list[int]:
        """Of a config that was recorded before a tunable was added, that one stays at its first value."""
        values = self._space.config(self._first | config.as_dict()).as_dict()
        return [tunable.encode(values[tunable.name]) for tunable in self._space.tunables]

    @cached_property
    def _own_columns(self) -> Columns:
        return self._columns_for(self._space.tunables)

    def _columns_for(self, tunables: tuple[Tunable, ...]) -> Columns:
        """For rows of these tunables; all others stay at their first value."""
        return Columns(RuleBook(self._space, tunables, self._first | self._given), self._counts.needed)
