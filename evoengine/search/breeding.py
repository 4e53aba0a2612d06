"""One family's breeding: what was learned of it, its elites, and the most promising child of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Status
from evoengine.search.outcome import Outcome
from evoengine.search.surrogate import Encoding, Floats, Hyper, Posterior, expected_improvement, fit
from evoengine.space.diagram import Row, Rows
from evoengine.space.neighbourhood import Neighbourhood
from evoengine.space.row_set import RowSet
from evoengine.space.valid import ValidSpace

Places = npt.NDArray[np.int64]

ELITES: Final = 5
PRESSURE: Final = 0.6
"""Weight of each elite relative to the next better one."""
LINKED_MOVES: Final = 224
CROSSINGS: Final = 64
STRANGERS: Final = 64
SMALL_SPACE: Final = 2**13
"""Of a space of so few configs, many strangers are looked at: in a sample of a larger space nobody has neighbours."""
MANY_STRANGERS: Final = 1024
PARENTS_OF_MORE: Final = 8
"""The most promising children, from which another round of moves starts."""
MORE_MOVES: Final = 96

WINDOW: Final = 128
"""Outcomes that the model is given: half of them the fastest, half the latest."""
UNSUITED_SHARE: Final = 0.8
"""Times above this quantile count as equally bad: how bad a cliff is says nothing about the plateau."""
NICHE_PER_TRIAL: Final = 0.01
"""Share of trials that go to another niche, per candidate since the fastest one; a stalled search looks elsewhere."""
MOST_NICHES: Final = 0.5
_FIRST_FIT: Final = 10
_NEXT_FIT: Final = 1.3
"""The model's weights are fitted anew when the outcomes have grown by this factor."""
_FAILURE_REACH: Final = 0.6
"""Steps of the encoding over which a failure makes another one likely."""


class Breeder:
    """Learns from the outcomes of one family and breeds its next candidate.

    Args:
        space: its valid configs.
    """

    def __init__(self, space: ValidSpace) -> None:
        self._space = space
        self._hood = Neighbourhood(space)
        self._encoding = Encoding(space.tunables)
        self._rows: list[Row] = []
        self._rows_of: dict[Config, Row] = {}
        self._log_us: list[float] = []
        self._features: list[Floats] = []
        self._standardised: Floats = np.zeros(0)
        self._failed: list[Row] = []
        self._fitted_at = 0
        self._hyper = Hyper.prior(len(space.tunables))
        self._model: tuple[int, Posterior, float] | None = None

    def suits(self, config: Config) -> bool:
        """Whether a config is valid here; one of an earlier space may not be."""
        return config in self._rows_of or self._space.contains(config)

    def learn(self, outcome: Outcome) -> None:
        """One more outcome, in order."""
        row = self._row_of(outcome.config)
        if outcome.value_us is not None:
            self._rows.append(row)
            self._features.append(self._encoding.features(row[None])[0])
            self._log_us.append(math.log(outcome.value_us))
            if self._is_due(len(self._rows)):
                self._fit()
        elif outcome.status is not Status.PRUNED:
            self._failed.append(row)

    def child(self, pending: Sequence[Config], seen: RowSet, rng: np.random.Generator) -> Config | None:
        """The most promising unseen child; None if all that were bred are seen."""
        model, best = self._conditioned()
        elites = self._elites(np.arange(len(self._rows)))
        if rng.random() < min(NICHE_PER_TRIAL * self._stalled, MOST_NICHES):
            niche = self._niche(rng)
            elites, best = self._elites(niche), float(self._standardised[niche].min())
        if pending:
            model = model.believing(self._encoding.features(np.array([self._row_of(config) for config in pending])))
        chosen = self._hood.valid(np.concatenate(list(self._pool(elites, rng))), seen)
        scores = self._scores(model, chosen, best)
        parents = chosen[np.argsort(-scores, kind="stable")[:PARENTS_OF_MORE]]
        if len(parents):
            more = self._hood.linked_moves(parents[rng.integers(len(parents), size=MORE_MOVES)], rng)
            more = self._hood.valid(np.concatenate([self._hood.sweep(parents[0]), more]), seen)
            chosen = np.concatenate([chosen, more])
            scores = np.concatenate([scores, self._scores(model, more, best)])
        return self._space.config_of(chosen[int(np.argmax(scores))]) if len(chosen) else None

    def _row_of(self, config: Config) -> Row:
        row = self._rows_of.get(config)
        if row is None:
            row = self._space.row_of(config)
            assert row is not None, "only valid configs are proposed"
            self._rows_of[config] = row
        return row

    # -- moves --------------------------------------------------------------------------------------------------------

    @property
    def _stalled(self) -> int:
        """Correct candidates since the fastest one."""
        return len(self._log_us) - 1 - int(np.argmin(self._log_us))

    def _niche(self, rng: np.random.Generator) -> Places:
        """Candidates that are far from the fastest one, in the model's measure: another basin, bred on its own.

        How far is drawn anew each time, so that several niches get their turn.
        """
        fastest = self._features[int(np.argmin(self._log_us))]
        weights = np.exp(self._hyper.weights)[self._encoding.owner] * self._encoding.scale
        steps = np.abs(np.array(self._features) - fastest) @ weights
        return np.flatnonzero(steps >= np.quantile(steps, rng.uniform(0.3, 0.9)))

    def _elites(self, among: Places) -> Rows:
        """The fastest candidates; of several with the very same time, which are one kernel, only the first."""
        order = among[np.argsort(np.array(self._log_us)[among], kind="stable")]
        fastest: dict[float, Row] = {}
        for place in order:
            fastest.setdefault(self._log_us[place], self._rows[place])
            if len(fastest) == ELITES:
                break
        return np.array(list(fastest.values()))

    def _pool(self, elites: Rows, rng: np.random.Generator) -> Iterator[Rows]:
        weights = PRESSURE ** np.arange(len(elites))
        weights /= weights.sum()

        def parents(count: int) -> Rows:
            return np.asarray(elites[rng.choice(len(elites), count, p=weights)])

        for elite in elites[:2]:
            yield self._hood.sweep(elite)
        yield self._hood.linked_moves(parents(LINKED_MOVES), rng)
        if len(elites) > 1:
            yield self._hood.crossings(parents(CROSSINGS), parents(CROSSINGS), rng)
        small = self._space.diagram.count <= SMALL_SPACE
        yield self._hood.strangers(MANY_STRANGERS if small else STRANGERS, rng)

    # -- model --------------------------------------------------------------------------------------------------------

    def _is_due(self, count: int) -> bool:
        return count >= max(_FIRST_FIT, math.ceil(self._fitted_at * _NEXT_FIT))

    def _fit(self) -> None:
        features, values, _ = self._data()
        self._hyper = fit(self._encoding, features, values)
        self._fitted_at = len(self._rows)

    def _data(self) -> tuple[Floats, Floats, float]:
        """Features, standardised values and the best of them."""
        log_us = np.array(self._log_us)
        kept = np.arange(len(log_us))
        if len(log_us) > WINDOW:
            fastest = np.argsort(log_us, kind="stable")[: WINDOW // 2]
            kept = np.union1d(fastest, kept[-WINDOW // 2 :])
        bound = np.quantile(log_us[kept], UNSUITED_SHARE)
        values = np.minimum(log_us[kept], bound)
        centre, scale = values.mean(), values.std() + 1e-9
        self._standardised = (np.minimum(log_us, bound) - centre) / scale
        values = self._standardised[kept]
        return np.array([self._features[place] for place in kept]), values, float(values.min())

    def _conditioned(self) -> tuple[Posterior, float]:
        """The model of all outcomes so far; made once for each."""
        if self._model is None or self._model[0] != len(self._rows):
            features, values, best = self._data()
            self._model = (len(self._rows), Posterior.of(self._encoding, self._hyper, features, values), best)
        return self._model[1], self._model[2]

    def _scores(self, model: Posterior, rows: Rows, best: float) -> Floats:
        """Expected improvement, as far as a candidate is expected to work at all."""
        if not len(rows):
            return np.zeros(0)
        features = self._encoding.features(rows)
        mean, deviation = model.predict(features)
        return expected_improvement(mean, deviation, best) * self._chance(features)

    def _chance(self, features: Floats) -> Floats:
        """Chance that configs work, from how near the failures and the successes are."""
        if not self._failed:
            return np.ones(len(features))
        failed = self._nearness(features, self._failed[-WINDOW:])
        worked = self._nearness(features, self._rows[-WINDOW:])
        return (worked + 1.0) / (worked + failed + 1.0)

    def _nearness(self, features: Floats, rows: Sequence[Row]) -> Floats:
        others = self._encoding.features(np.array(rows))
        weighted = features * self._encoding.scale
        steps = weighted.sum(axis=1)[:, None] + others @ self._encoding.scale - 2 * weighted @ others.T
        return np.asarray(np.exp(-steps / _FAILURE_REACH).sum(axis=1))
