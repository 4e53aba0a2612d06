"""Optuna's samplers as strategies: a study's outcomes as an Optuna study in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from evoengine.model import Config, Value
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.family_bandit import FamilyBandit, choose_family
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.sampler import START, Offspring, View
from evoengine.space.family_spaces import FamilySpaces


def quiet_optuna() -> None:
    """Silences Optuna's messages about every study and trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class ObservedStudy:
    """An Optuna study in memory that holds the observed outcomes.

    Args:
        parameters: Mapping between configs and Optuna's parameters.
    """

    def __init__(self, parameters: Parameters) -> None:
        quiet_optuna()
        self._parameters = parameters
        self._observed = 0
        self._asked: Trial | None = None
        self.study = optuna.create_study()

    def trial_for(self, view: View) -> FrozenTrial:
        """Adds the outcomes that are new in a view, and returns a trial for the proposal."""
        for outcome in view.observed[self._observed :]:
            distributions = self._parameters.of(outcome.config.family)
            self.study.add_trial(_finished_trial(outcome, self._parameters, distributions, {}))
        self._observed = len(view.observed)
        if self._asked is not None:
            self.study.tell(self._asked, state=TrialState.FAIL)  # samplers learn from the outcomes only
        self._asked = self.study.ask()
        return self.study.get_trials(deepcopy=False)[self._asked.number]


class OptunaSampler:
    """A :class:`~evoengine.search.strategies.sampler.Sampler` around any sampler of Optuna.

    Each family has its own Optuna study and sampler, so that all trials of a study have the same parameters; trials are
    allocated to families as in ``evolution``. A sample is repaired to the nearest unseen valid config, and the study is
    given the config that was evaluated. The sampler is asked once for each trial of its family, in order of their
    numbers, after the outcomes that the trial could depend on; this includes enqueued trials and, after a restart, the
    trials of the earlier run. A resumed search therefore makes the same proposals, if all randomness of the sampler
    follows from its seed.

    Args:
        spaces: Valid configs, by family.
        make: Function that makes a sampler from a seed.
        seed: Random seed of the search.
    """

    def __init__(self, spaces: FamilySpaces, make: Callable[[int], BaseSampler], seed: int) -> None:
        quiet_optuna()
        self._spaces = spaces
        parameters = Parameters(spaces)
        self._studies = {family: _FamilyStudy(family, parameters, make(seed)) for family in spaces.families}
        self._bandit = FamilyBandit()
        self._observed = 0
        self._asked = 0
        self._asked_family = ""

    def propose(self, view: View, rng: np.random.Generator) -> Config | Offspring:
        """Returns the unseen config nearest to a sample; a random one if the trial's first proposal was pruned."""
        if self._asked > view.number:
            return view.seen.random_unseen(rng, self._asked_family)
        known = self._bandit.update(view.observed).by_family
        family = choose_family(view.seen.open_families(), known, view.seen.count, rng)
        for start in view.deferred:
            if start.family == family:
                return Offspring(start, START)
        for number in range(self._asked, view.number):
            self._observe(view, view.trials[number].known)
            config = view.trials[number].config
            if config.family in self._studies:
                self._studies[config.family].ask(number)
        self._observe(view, len(view.observed))
        self._asked, self._asked_family = view.number + 1, family
        values = self._studies[family].ask(view.number)
        return view.seen.nearest_unseen(family, values, rng)

    def _observe(self, view: View, count: int) -> None:
        for outcome in view.observed[self._observed : count]:
            if self._spaces.contains(outcome.config):  # a config of an earlier space may be invalid in this one
                self._studies[outcome.config.family].tell(outcome)
        self._observed = max(self._observed, count)


class _FamilyStudy:
    """The Optuna study of one family."""

    def __init__(self, family: str, parameters: Parameters, sampler: BaseSampler) -> None:
        self._family = family
        self._parameters = parameters
        self._distributions = parameters.tunables[family]
        self._study = optuna.create_study(sampler=sampler)
        self._running: dict[int, Trial] = {}

    def ask(self, number: int) -> Mapping[str, Value]:
        """Returns the sampler's values for a trial, which may be invalid together."""
        trial = self._running[number] = self._study.ask(self._distributions)
        return self._parameters.values(self._family, trial.params)

    def tell(self, outcome: Outcome) -> None:
        """Replaces the running trial by one with the evaluated config; both carry the sampler's notes on the trial."""
        attributes: dict[str, Any] = {}
        running = None if outcome.number is None else self._running.pop(outcome.number, None)
        if running is not None:
            attributes = self._study.get_trials(deepcopy=False)[running.number].system_attrs
            self._study.tell(running, state=TrialState.FAIL)
        self._study.add_trial(_finished_trial(outcome, self._parameters, self._distributions, attributes))


def _finished_trial(
    outcome: Outcome,
    parameters: Parameters,
    distributions: dict[str, BaseDistribution],
    system_attrs: dict[str, Any],
) -> FrozenTrial:
    params = parameters.params(outcome.config)
    return create_trial(
        state=TrialState.FAIL if outcome.value_us is None else TrialState.COMPLETE,
        value=outcome.value_us,
        params={name: params[name] for name in distributions},
        distributions=distributions,
        system_attrs=system_attrs,
    )
