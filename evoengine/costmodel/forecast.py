"""Analytic forecast: predicts the time of a config from the config and the problem alone, without compiling it.

The counts that the emulator would measure follow from a family's algorithm: the number of key tiles of a warp, and the
mma, ldmatrix, exponential, copy and barrier instructions of a tile. The latency model is the one used for executed
kernels. Families of warpgroups (``hopper``, ``wgmma``) are simulated instead, config by config. Registers are estimated
from live values, so spills and occupancy are estimates too. A forecast takes well below a millisecond, or some
milliseconds where it is simulated. It is accurate enough to order a queue, not to reject a config.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.error_features import NEEDED, Array, feature_matrix, launch_columns
from evoengine.costmodel.family_counts import (
    FamilyCounts,
    FamilySimulation,
    KernelFacts,
    Names,
    Setting,
    counts_of,
    per_config,
    simulation_of,
)
from evoengine.costmodel.forecast_error import (
    correction_factor,
    error_loadings,
    error_model,
    own_covariance,
    own_error,
)
from evoengine.costmodel.latency import (
    FITTED,
    SPILLED_BYTES,
    Constants,
    Demand,
    Numbers,
    simulated_times_us,
    times_us,
    with_dram_us,
)
from evoengine.kernel.resources import occupancy
from evoengine.model import Config, Problem, Resources, Value
from evoengine.space.columns import Columns
from evoengine.space.index_rows import IndexRows
from evoengine.space.language.rules import problem_scope
from evoengine.space.rulebook import RuleBook
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Tunable
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target


def _model_of(family: str) -> type[FamilyCounts | FamilySimulation] | None:
    return counts_of(family) or simulation_of(family)


_MOST_ROWS: Final = 2**27
"""Query rows of all heads beyond which there is no forecast: models list the tiles of all rows."""
_REMEMBERED: Final = 2**16
"""Cached combinations of resources per CTA."""
_AT_ONCE: Final = 128
"""Configs to forecast together: a hundred take little longer than one."""
_FEW_AT_ONCE: Final = 4
"""The same where each config is simulated."""
EXECUTED_SHARE: Final = 0.4
"""Share of the difference between the time by executed counts and that by forecast counts, as logarithms, that a
corrected prediction keeps. Chosen on 81 problems of the fit, each corrected by a fit without it: the orders near their
best differ little from 0.25 to 0.5, and are worse at 1."""
USUALLY_APART: Final = 0.2
"""Largest difference that is reduced to that share: 99 % of 1,400 kernels of these problems differ by less."""


SimulationKey = tuple[Any, ...]
"""All that the simulation of a config depends on: CTAs per SM, spilled registers, and the values that it uses."""
Times = npt.NDArray[np.float64]
"""Both times of simulated launches, ``[keys, 2]``: if all bytes were in L2, and of their bytes from DRAM."""


class SimulationService(Protocol):
    """Simulates configs elsewhere, such as in several processes."""

    @property
    def at_once(self) -> int:
        """Number of configs to forecast together where only the first of some are needed."""

    def simulate(
        self, family: str, keys: Sequence[SimulationKey], here: Callable[[Sequence[SimulationKey]], Times]
    ) -> Times:
        """Simulates configs of one family, ``[keys, 2]``.

        Args:
            family: Name of the family.
            keys: Distinct keys.
            here: Simulates some in this process, with the same results.
        """


class AnalyticForecast:
    """Predicted times of one family's configs; create one only where :meth:`covers` holds.

    Args:
        space: Search space of the family, as its file defines it.
        problem: Problem to be computed.
        target: GPU to predict for.
        constants: Constants of the latency model.
        corrected: Whether to correct the predictions by the expected error of the model.
        service: Simulates configs of families that are simulated; None to simulate them here.
    """

    def __init__(
        self,
        space: SearchSpace,
        problem: Problem,
        target: Target,
        constants: Constants = FITTED,
        *,
        corrected: bool = True,
        service: SimulationService | None = None,
    ) -> None:
        self._space = space
        self._corrected = corrected
        self._service = service
        self._setting = Setting(problem, target, constants)
        model = _model_of(space.family)
        assert model is not None, f"family {space.family} has no forecast: ask covers() first"
        self._model = model(self._setting)
        self._simulated: dict[SimulationKey, tuple[float, float]] = {}
        """Both times of the main launch."""
        self._given = {**problem_scope(problem), **target.scope()}
        self._first = {tunable.name: tunable.values[0] for tunable in space.tunables}
        self._unique_bytes = problem.min_bytes
        self._resident = lru_cache(_REMEMBERED)(self._ctas_per_sm)
        self._columns: dict[ValidSpace, Columns] = {}

    @staticmethod
    def covers(space: SearchSpace, problem: Problem) -> bool:
        """Returns whether the family has a model, the space has the names that it uses, and it covers the problem."""
        if problem.batch * problem.heads * problem.seq_q > _MOST_ROWS:
            return False
        model = _model_of(space.family)
        return model is not None and space.names >= model.needed and model.covers(problem)

    @cached_property
    def _wanted(self) -> frozenset[str]:
        """Names that the model uses and the space has."""
        return self._model.needed | (self._space.names & self._model.defaults.keys())

    @cached_property
    def _named(self) -> frozenset[str]:
        """Names that the model or the expected error use."""
        return self._wanted | (NEEDED | self._space.by_name.keys() if self._space.names >= NEEDED else frozenset())

    @property
    def is_quick(self) -> bool:
        """Whether hundreds of configs take little longer than one; false if each config is simulated."""
        return not isinstance(self._model, FamilySimulation)

    @property
    def at_once(self) -> int:
        """Number of configs to forecast together where only the first of some are needed."""
        if self.is_quick:
            return _AT_ONCE
        return _FEW_AT_ONCE if self._service is None else self._service.at_once

    def us(self, config: Config) -> float:
        """Predicts the device time of a config, in microseconds; infinite if no CTA is expected to fit on an SM.

        Raises:
            UsageError: The config does not belong to this space.
        """
        return float(self.us_of([config])[0])

    def us_of(self, configs: Sequence[Config], resources: Sequence[Resources] | None = None) -> npt.NDArray[np.float64]:
        """Predicts the times of many configs, ``[configs]``; hundreds take little longer than one.

        Args:
            configs: Configs of the space.
            resources: What ptxas reported for each; None to estimate it.

        Raises:
            UsageError: A config does not belong to this space.
        """
        return self._us(self._names(configs), resources)

    def waits_for_dram(self, configs: Sequence[Config], resources: Sequence[Resources]) -> npt.NDArray[np.bool_]:
        """Returns which configs are predicted to wait for their bytes from DRAM, ``[configs]``."""
        names = self._names(configs)
        busy_us, dram_us = self._times_us(names, *self._fitting(names, resources))
        waits: npt.NDArray[np.bool_] = np.broadcast_to(dram_us > busy_us, len(configs))
        return waits

    def features(
        self, configs: Sequence[Config], features: Sequence[str], resources: Sequence[Resources] | None = None
    ) -> npt.NDArray[np.float64]:
        """Computes features of the expected error, ``[configs, features]``; see :mod:`.error_features`."""
        names = self._names(configs)
        resident, spilled = self._fitting(names, resources)
        busy_us, _ = self._times_us(names, resident, spilled)
        return self._features(names, resident, spilled, busy_us, features)

    def correction(self, config: Config, resources: Resources, executed_us: float) -> float:
        """Computes the factor that corrects the predicted time of an executed kernel.

        The expected error was fitted on forecasts, so the time of a kernel of the family is moved from its own counts
        towards its forecast, by a share of the usual difference. What exceeds the usual difference, as with a template
        of the user's own, is kept, and all of it for a variant, whose code the forecast does not describe.

        Args:
            config: Config of the family or of a variant, whose own tunables do not count.
            resources: What ptxas reported.
            executed_us: Time predicted from the counts of the executed kernel if all bytes were in L2.

        Raises:
            UsageError: A value does not belong to this space.
        """
        own = {tunable.name for tunable in self._space.tunables}
        values = {name: value for name, value in config.values if name in own}
        names = self._names([Config.of(self._space.family, values)])
        resident, spilled = self._fitting(names, [resources])
        busy_us, _ = self._times_us(names, resident, spilled)
        factor = float(self._factor(names, resident, spilled, busy_us)[0])
        if config.family == self._space.family:
            apart = math.log(executed_us / np.asarray(busy_us).item())
            factor *= math.exp((EXECUTED_SHARE - 1) * max(-USUALLY_APART, min(apart, USUALLY_APART)))
        return factor

    def error_covariance(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        """Returns the covariance of the errors of predictions, ``[configs, configs]``, as logarithms.

        Raises:
            UsageError: A config does not belong to this space.
        """
        family = self._space.family
        own = own_covariance(configs, self._model.partition, own_error(family))
        if error_model(family) is None:
            return own
        loadings = error_loadings(family, partial(self.features, configs))
        return own + loadings @ loadings.T

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        """Predicts the times of rows of a space, without building :class:`Config` objects.

        Args:
            space: Space of valid configs of this family.
            rows: Rows of that space, ``[configs, tunables]``.
        """
        if space not in self._columns:
            self._columns[space] = self._columns_for(space.tunables)
        return self._us(self._columns[space].of(rows))

    def demand(self, config: Config) -> Demand:
        """Computes the counts of the main launch behind :meth:`us`, of a family that has counts; arrays of one element.

        Raises:
            UsageError: The config does not belong to this space.
        """
        assert not isinstance(self._model, FamilySimulation)
        names = self._names([config])
        return self._model.demand(names, self._model.registers(names)[1])

    @property
    def partition(self) -> tuple[str, ...]:
        """Tunables that determine how a config partitions the work."""
        return self._model.partition

    def kind(self, config: Config) -> tuple[Value, ...]:
        """Returns the work partition of a config. Predictions for configs with equal partitions have similar errors."""
        values = config.as_dict()
        return tuple(values[name] for name in self._model.partition if name in values)

    def _fitting(self, names: Names, resources: Sequence[Resources] | None) -> tuple[npt.NDArray[np.int64], Numbers]:
        """CTAs that fit on an SM and spilled registers of many configs, from ptxas or estimated."""
        if resources is not None:
            fitting = [self._resident(one.registers, one.smem_bytes, one.threads) for one in resources]
            return np.array(fitting), np.array([one.spill_bytes / SPILLED_BYTES for one in resources])
        registers, spilled = self._model.registers(names)
        return per_config(self._resident, registers, names["SMEM_BYTES"], names["THREADS"]), spilled

    def _us(self, names: Names, resources: Sequence[Resources] | None = None) -> npt.NDArray[np.float64]:
        resident, spilled = self._fitting(names, resources)
        busy_us, dram_us = self._times_us(names, resident, spilled)
        if self._corrected and len(resident):
            busy_us = busy_us * self._factor(names, resident, spilled, busy_us)
        launch_us = self._setting.target.launch_overhead_us + self._further_launches_us(names)
        return np.where(resident > 0, with_dram_us(busy_us, dram_us, launch_us), np.inf)

    def _factor(self, names: Names, resident: npt.NDArray[np.int64], spilled: Numbers, busy_us: Numbers) -> Array:
        """Factor that corrects predicted times, ``[configs]``."""
        own = partial(self._features, names, resident, spilled, busy_us)
        return correction_factor(self._space.family, own, self._setting.target)

    def _features(
        self, names: Names, resident: npt.NDArray[np.int64], spilled: Numbers, busy_us: Numbers, wanted: Sequence[str]
    ) -> Array:
        launch = launch_columns(names, self._setting.problem, self._setting.target, resident, spilled, busy_us)
        return feature_matrix(wanted, names, launch)

    def _times_us(self, names: Names, resident: npt.NDArray[np.int64], spilled: Numbers) -> tuple[Numbers, Numbers]:
        """Computes the two times of :class:`LatencyEstimate` of many configs, without correction."""
        model, setting = self._model, self._setting
        fitting = np.maximum(resident, 1)
        if isinstance(model, FamilySimulation):
            spills = np.broadcast_to(spilled, resident.shape)
            return self._simulated_us(names, spills.tolist(), fitting.tolist())
        busy_us, dram_us = times_us(
            model.demand(names, spilled),
            fitting,
            setting.target,
            unique_bytes=self._unique_bytes,
            constants=setting.constants,
        )
        more_us = self._further_launches_us(names)
        return busy_us + more_us, dram_us + more_us

    def _further_launches_us(self, names: Names) -> Numbers:
        """Time of the launches after the main one; simulations have none."""
        return 0.0 if isinstance(self._model, FamilySimulation) else self._model.extra_launches_us(names)

    def _simulated_us(
        self, names: Names, spilled: Sequence[float], resident: Sequence[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Simulates configs; those that differ only in what the simulation does not see share one result."""
        wanted = self._simulated_names
        keys = [*zip(resident, spilled, *(names[name].tolist() for name in wanted), strict=True)]
        new = [key for key in dict.fromkeys(keys) if key not in self._simulated]
        if self._service is None or len(new) < 2:
            found = self.simulate(new)
        else:
            found = self._service.simulate(self._space.family, new, self.simulate)
        self._simulated.update(zip(new, map(tuple, found.tolist()), strict=True))
        busy_us, dram_us = np.array([self._simulated[key] for key in keys], np.float64).reshape(-1, 2).T
        return busy_us, dram_us

    @cached_property
    def _simulated_names(self) -> list[str]:
        """Names of the values in a :data:`SimulationKey`, in its order."""
        return sorted(self._wanted)

    def simulate(self, keys: Sequence[SimulationKey]) -> Times:
        """Simulates configs of a family that is simulated, one by one in this process, ``[keys, 2]``."""
        model, setting = self._model, self._setting
        assert isinstance(model, FamilySimulation)
        found = []
        for resident, spilled, *values in keys:
            launch = model.launch(dict(zip(self._simulated_names, values, strict=True)), KernelFacts(resident, spilled))
            found.append(simulated_times_us(launch, setting.target, self._unique_bytes))
        return np.array(found, np.float64).reshape(-1, 2)

    def _ctas_per_sm(self, registers: int, smem_bytes: int, threads: int) -> int:
        return occupancy(Resources(registers, 0, 0, 0, smem_bytes, threads), self._setting.target).blocks_per_sm

    def _names(self, configs: Sequence[Config]) -> Names:
        rows = np.array([*map(self._row, configs)], np.uint8).reshape(-1, len(self._space.tunables))
        return self._own_columns.of(rows)

    def _row(self, config: Config) -> list[int]:
        """Encodes a config, perhaps one recorded with an older version of the space."""
        values = self._space.updated(config).as_dict()
        return [tunable.encode(values[tunable.name]) for tunable in self._space.tunables]

    @cached_property
    def _own_columns(self) -> Columns:
        return self._columns_for(self._space.tunables)

    def _columns_for(self, tunables: tuple[Tunable, ...]) -> Columns:
        """Builds the columns for rows of these tunables; all others stay at their first value."""
        return Columns(RuleBook(self._space, tunables, self._first | self._given), self._named)
