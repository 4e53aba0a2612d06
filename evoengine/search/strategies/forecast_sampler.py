"""Configs by forecast, corrected by the times that the search has measured.

The latency model's errors are alike for similar configs: their logarithms are jointly normal, with a covariance that
was fitted between problems (:mod:`evoengine.costmodel.forecast_error`). Each measured time of a candidate is one
observation of an error. Conditioned on all of them, the errors of the other candidates have a mean, which corrects
their forecasts, and a standard deviation (Rasmussen & Williams 2006, section 2.2). The candidate with the least lower
confidence bound, mean minus deviation (Cox & John 1992), is tried next. Candidates in flight reduce the deviations but
not the means, so that none of their twins is proposed beside them.

After the opening every other proposal is chosen like this, until no bound is below the best time, or
:data:`FURTHER` candidates were tried. The others are those of the strategy. Everything follows from the trials and
their outcomes in order, so that a resumed search proposes the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Provenance
from evoengine.search.forecast.choice import COUNT, ForecastChoice
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.sampler import Offspring, Sampler, View

FURTHER: Final = 2 * COUNT
"""Most candidates that are tried after the opening."""
FORECAST: Final = Provenance("forecast")
"""Provenance of a config that was chosen by its corrected forecast."""

_NOISE: Final = 0.01
"""Standard deviation of a measured time's logarithm, which also keeps twins from making the covariance singular."""
_DIGITS: Final = 6
"""Digits to which bounds are compared, so that their order does not depend on how a platform rounds."""

_Floats = npt.NDArray[np.float64]


class ForecastSampler:
    """A :class:`~evoengine.search.strategies.sampler.Sampler` that alternates between another one and the forecast.

    Args:
        sampler: The strategy's own sampler.
        choice: Candidates, which may still be computed.
    """

    def __init__(self, sampler: Sampler, choice: Future[ForecastChoice]) -> None:
        self._sampler = sampler
        self._choice = choice
        self._candidates: _Candidates | None = None
        self._answered: tuple[View, Config | None] | None = None

    def propose(self, view: View, rng: np.random.Generator) -> Config | Offspring:
        """Returns a candidate for every other trial, as long as one may be faster than the best so far."""
        config = self._by_forecast(view) if view.number % 2 == 0 else None
        return self._sampler.propose(view, rng) if config is None else Offspring(config, FORECAST)

    def _by_forecast(self, view: View) -> Config | None:
        if self._candidates is None:
            self._candidates = _Candidates(self._choice.result())
        if self._answered is None or self._answered[0] is not view:  # asked again when the other's proposal was pruned
            self._answered = view, self._candidates.best(view)
        return self._answered[1]


class _Candidates:
    """The candidates of a choice, with the covariance of their errors."""

    def __init__(self, choice: ForecastChoice) -> None:
        self._opening = frozenset(choice.opening)
        self._configs = choice.candidates
        self._places = {config: place for place, config in enumerate(choice.candidates)}
        self._expected: _Floats = np.log(np.array(choice.candidate_us, np.float64))
        self._conditioned = _ConditionedErrors(choice.covariance)

    def best(self, view: View) -> Config | None:
        """Returns the unseen candidate with the least bound; None if no bound is below the best time."""
        tried = [self._places[trial.config] for trial in view.trials if trial.config in self._places]
        if sum(self._configs[place] not in self._opening for place in tried) >= FURTHER:
            return None
        measured = _times(view.observed)
        known = [place for place in tried if self._configs[place] in measured]
        left = sorted(set(range(len(self._configs))).difference(tried))
        if not known or not left:
            return None
        log_us = np.log([measured[self._configs[place]] for place in known])
        pending = [self._places[config] for config in view.pending if config in self._places]
        bounds = np.round(self._bounds(left, known, log_us - self._expected[known], pending), _DIGITS)
        least = math.log(min(measured.values()))
        for index in np.argsort(bounds, kind="stable").tolist():
            if bounds[index] >= least:
                return None
            config: Config = self._configs[left[index]]
            if config not in view.seen:
                return config
        return None

    def _bounds(self, left: list[int], known: list[int], errors: _Floats, pending: list[int]) -> _Floats:
        """Lower confidence bounds of the logarithms of candidates' times, given the errors of some others."""
        self._conditioned.on([*known, *(place for place in pending if place not in known)])
        bounds: _Floats = self._expected + self._conditioned.mean(errors) - self._conditioned.deviation
        return bounds[left]


class _ConditionedErrors:
    """Jointly normal errors of all candidates, given those of some of them.

    A row for each given candidate is the solution of the Cholesky factor of the covariance among the given ones for
    their covariance with all. The given ones of two proposals mostly begin alike: such rows are used again, so that a
    further candidate costs the product of the numbers of given and of all, not its square.
    """

    def __init__(self, covariance: _Floats) -> None:
        self._covariance = covariance
        self._given: list[int] = []
        self._rows: _Floats = np.zeros_like(covariance)
        """``[given, all]``; only as many rows as are given are used."""
        self._pivots: list[float] = []
        """Diagonal of the Cholesky factor."""

    def on(self, given: Sequence[int]) -> None:
        """Changes which candidates are given; the errors of the first ones may be known, those of others pending."""
        alike = 0
        while alike < min(len(given), len(self._given)) and given[alike] == self._given[alike]:
            alike += 1
        del self._given[alike:], self._pivots[alike:]
        for place in given[alike:]:
            rows = self._rows[: len(self._given)]
            along = rows[:, place]
            pivot = math.sqrt(self._covariance[place, place] + _NOISE**2 - along @ along)
            self._rows[len(self._given)] = (self._covariance[place] - along @ rows) / pivot
            self._given.append(place)
            self._pivots.append(pivot)

    def mean(self, errors: _Floats) -> _Floats:
        """Expected errors of all candidates if the first given ones have these, ``[all]``."""
        known = len(errors)
        factor = np.tril(self._rows[:known, self._given[:known]].T, -1) + np.diag(self._pivots[:known])
        mean: _Floats = np.linalg.solve(factor, errors) @ self._rows[:known]
        return mean

    @property
    def deviation(self) -> _Floats:
        """Standard deviations of the errors of all candidates, ``[all]``."""
        explained = (self._rows[: len(self._given)] ** 2).sum(axis=0)
        deviation: _Floats = np.sqrt(np.maximum(self._covariance.diagonal() - explained, 0.0))
        return deviation


def _times(observed: Sequence[Outcome]) -> dict[Config, float]:
    """Measured times by config."""
    return {outcome.config: outcome.value_us for outcome in observed if outcome.value_us is not None}
