"""The ``evolution`` strategy: elite parents, crossover, mutation, repair; never the same config twice.

The population of a generation is what Optuna's :class:`BaseGASampler` keeps with each trial; parents of the next
generation are the elites of everything evaluated so far. Mutations are small while the search gets better, and grow
with each generation that brought nothing new.

Of several families, the first generation tries all alike. From then on each family has elites of its own, and is bred
the more often the closer its best candidate comes to the best of all, with hope for those that were tried little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from optuna.samplers import BaseGASampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from evoengine.model import Config
from evoengine.search.archive import Archive
from evoengine.search.samplers import WholeConfigSampler
from evoengine.search.standings import choose_family, standings

POPULATION: Final = 10
"""Correct candidates per generation; the first one is random."""

PARENTS: Final = 6
"""Elites that may become parents."""

_CROSSOVER_PROBABILITY: Final = 0.3
_IMMIGRANT_PROBABILITY: Final = 0.04
_STALL_IMMIGRANTS: Final = 0.08
"""More immigrants per generation without progress, up to :data:`_MOST_IMMIGRANTS`."""
_MOST_IMMIGRANTS: Final = 0.4
_SELECTION_PRESSURE: Final = 0.4
"""Weight of each parent relative to the next better one."""


class EvolutionSampler(BaseGASampler, WholeConfigSampler):
    """A steady genetic algorithm over valid configs.

    Args:
        archive: what has been seen.
        seed: randomness derives from it and the trial number.
        population_size: correct candidates per generation.
    """

    def __init__(self, archive: Archive, seed: int, population_size: int = POPULATION) -> None:
        BaseGASampler.__init__(self, population_size=population_size)
        WholeConfigSampler.__init__(self, archive, seed)

    def select_parent(self, study: Study, generation: int) -> list[FrozenTrial]:
        """Each family's elites; of several with the very same time, which are one kernel, only the first."""
        elites: dict[str, dict[float, FrozenTrial]] = {}
        for trial in sorted(_correct(study), key=lambda trial: (_value(trial), trial.number)):
            own = elites.setdefault(self.parameters.family(trial.params), {})
            if len(own) < PARENTS:
                own.setdefault(_value(trial), trial)
        return [trial for own in elites.values() for trial in own.values()]

    def propose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Config:
        """A child of elite parents, or a stranger."""
        generation = self.get_trial_generation(study, trial)
        elites = sorted(self.get_parent_population(study, generation), key=_value)
        families = self.archive.open_families()
        if not elites:
            return self.archive.random_unseen(rng, min(families, key=self.archive.seen))
        known = standings((self.parameters.family(one.params), _value(one)) for one in _correct(study))
        family = choose_family(families, known, self.archive.seen, rng)
        parents = [self._config(elite) for elite in elites if self.parameters.family(elite.params) == family]
        stalled = known[family].stalled(POPULATION) if family in known else 0
        immigrants = min(_IMMIGRANT_PROBABILITY + _STALL_IMMIGRANTS * stalled, _MOST_IMMIGRANTS)
        if not parents or rng.random() < immigrants:
            return self.archive.random_unseen(rng, family)
        return self._child(parents, stalled, rng)

    def _child(self, parents: Sequence[Config], stalled: int, rng: np.random.Generator) -> Config:
        """A mutation of one parent, or a mixture of two; all are of one family."""
        weights = _SELECTION_PRESSURE ** np.arange(len(parents))
        first, second = rng.choice(len(parents), size=2, p=weights / weights.sum())
        child = parents[int(first)]
        space = self.archive.spaces.of(child.family)
        crossed = first != second and rng.random() < _CROSSOVER_PROBABILITY
        if crossed:
            child = space.crossover(child, parents[int(second)], rng)
        if not crossed or child in self.archive:
            child = space.mutate(child, rng, rate=(1 + stalled) / (2 * len(space.tunables)))
        return self.archive.nearest_unseen(child.family, child.as_dict(), rng)

    def _config(self, trial: FrozenTrial) -> Config:
        return self.parameters.config(trial.params)


def _correct(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _value(trial: FrozenTrial) -> float:
    value = trial.value
    return float("inf") if value is None else value
