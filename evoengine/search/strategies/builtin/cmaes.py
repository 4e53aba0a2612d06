"""The ``cmaes`` strategy: covariance matrix adaptation; each sample is repaired to the nearest unseen valid config.

A point has one axis per ordinal or boolean tunable (the index of its value, scaled to 0..1), and one axis per choice of
a categorical tunable (the largest coordinate selects the choice). The separable variant is used (Ros & Hansen 2008): a
full covariance of some forty axes takes thousands of evaluations to adapt. The optimizer is given the points of the
configs that were evaluated rather than of those it sampled (injected solutions, Hansen 2011, with the bound on the
length of a step), in order of their trials and in whole generations, so that its state follows from the outcomes alone.
Optuna's ``CmaEsSampler`` wraps the same library, but does not support categorical tunables, and it keeps its state in
running trials, where a resumed search cannot find it.

With several families, each has its own distribution, and trials are allocated to families as in ``evolution``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from cmaes import SepCMA

from evoengine.model import Config, Value
from evoengine.search.strategies.family_bandit import FamilyBandit, choose_family
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.sampler import View
from evoengine.search.strategies.spec import StrategySpec, require
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.tunables import Categorical, Tunable

Point = npt.NDArray[np.float64]

_SEED_LIMIT: Final = 2**31
_FAILURE_PENALTY: Final = 10.0
"""Time of a failed config, as a multiple of the slowest correct one of its generation."""
_PROBES: Final = 100
"""Samples from which the standard deviations of the axes are estimated; the library does not publish them."""


@dataclass(frozen=True)
class CmaEsOptions:
    """Options of the ``cmaes`` strategy."""

    sigma: float = 0.3
    """Initial step size; every axis spans 0..1."""

    def __post_init__(self) -> None:
        require(0 < self.sigma <= 1, "sigma must be above 0 and at most 1")


class CmaEsSampler:
    """Samples one adapted distribution per family.

    Args:
        spaces: Valid configs, by family.
        options: Options of the strategy.
    """

    def __init__(self, spaces: FamilySpaces, options: CmaEsOptions) -> None:
        self._optimizers = {member.family: _FamilyCmaEs(member.tunables, options.sigma) for member in spaces.members}
        self._bandit = FamilyBandit()
        self._observed = 0

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        """Returns the unseen config nearest to a sample of one family's distribution."""
        for outcome in view.observed[self._observed :]:
            if outcome.config.family in self._optimizers:
                self._optimizers[outcome.config.family].learn(outcome)
        self._observed = len(view.observed)
        known = self._bandit.update(view.observed).by_family
        family = choose_family(view.seen.open_families(), known, view.seen.count, rng)
        for start in view.deferred:
            if start.family == family:
                return start
        values = self._optimizers[family].sample(int(rng.integers(_SEED_LIMIT)))
        return view.seen.nearest_unseen(family, values, rng) if values else view.seen.random_unseen(rng, family)


class _FamilyCmaEs:
    """A separable CMA-ES over the points of one family."""

    def __init__(self, tunables: Sequence[Tunable], sigma: float) -> None:
        self._tunables = [tunable for tunable in tunables if len(tunable.values) > 1]
        axes = sum(map(_axes, self._tunables))
        self._generation: list[tuple[Point, float | None]] = []
        # SepCMA needs two axes. A family with fewer has a handful of configs, which are drawn at random.
        self._cma = SepCMA(np.full(axes, 0.5), sigma, np.tile([0.0, 1.0], (axes, 1))) if axes > 1 else None

    def learn(self, outcome: Outcome) -> None:
        """Adds the next outcome; a whole generation updates the distribution."""
        if self._cma is None:
            return
        self._generation.append((self._point(outcome.config), outcome.value_us))
        if len(self._generation) < self._cma.population_size:
            return
        slowest = max((us for _, us in self._generation if us is not None), default=1.0)
        times = [slowest * _FAILURE_PENALTY if us is None else us for _, us in self._generation]
        points = _with_bounded_steps(self._cma, np.array([point for point, _ in self._generation]))
        self._cma.tell([*zip(points, times, strict=True)])
        self._generation = []

    def sample(self, seed: int) -> dict[str, Value]:
        """Samples values of the tunables that have more than one; empty where there is nothing to adapt."""
        if self._cma is None:
            return {}
        self._cma.reseed_rng(seed)
        point, values = self._cma.ask(), {}
        for tunable in self._tunables:
            own, point = point[: _axes(tunable)], point[_axes(tunable) :]
            last = len(tunable.values) - 1
            index = int(np.argmax(own)) if len(own) > 1 else round(float(own[0]) * last)
            values[tunable.name] = tunable.decode(min(max(index, 0), last))
        return values

    def _point(self, config: Config) -> Point:
        parts = []
        for tunable in self._tunables:
            index = tunable.encode(config[tunable.name])
            if _axes(tunable) > 1:
                parts.append(np.where(np.arange(len(tunable.values)) == index, 0.75, 0.25))
            else:
                parts.append(np.array([index / (len(tunable.values) - 1)]))
        return np.concatenate(parts)


def _with_bounded_steps(cma: SepCMA, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Moves points towards the mean that are farther from it than nearly all samples, ``[points, axes]``.

    A config may be many standard deviations from the mean, above all where all nearer ones are seen. Without the bound
    such points let the step size diverge (Hansen 2011).
    """
    probe = copy(cma)
    probe.set_bounds(None)
    probe.reseed_rng(0)
    deviations = np.std([probe.ask() for _ in range(_PROBES)], axis=0)
    steps = points - cma.mean
    lengths = np.linalg.norm(steps / deviations, axis=1, keepdims=True)
    longest = math.sqrt(cma.dim) + 2 * cma.dim / (cma.dim + 2)
    bounded: npt.NDArray[np.float64] = cma.mean + steps * (longest / np.maximum(lengths, longest))
    return bounded


def _axes(tunable: Tunable) -> int:
    many = isinstance(tunable, Categorical) and len(tunable.values) > 2
    return len(tunable.values) if many else 1


STRATEGY = StrategySpec("separable CMA-ES with repair", CmaEsOptions, CmaEsSampler)
