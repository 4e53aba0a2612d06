"""A study's outcomes as an Optuna study in memory, for strategies that are Optuna's own samplers."""

from __future__ import annotations

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.strategy import View
from evoengine.search.trial_log import quiet_optuna


class OptunaAdapter:
    """Keeps a study in memory up to date with what a sampler may see.

    Args:
        parameters: between configs and Optuna's parameters.
    """

    def __init__(self, parameters: Parameters) -> None:
        quiet_optuna()
        self._parameters = parameters
        self._mirrored = 0
        self._asked: Trial | None = None
        self.study = optuna.create_study()

    def trial_of(self, view: View) -> FrozenTrial:
        """The trial that a proposal is for, after the study has been brought up to date."""
        self.study.add_trials(
            [
                create_trial(
                    state=TrialState.FAIL if outcome.value_us is None else TrialState.COMPLETE,
                    value=outcome.value_us,
                    params=self._parameters.params(outcome.config),
                    distributions=self._parameters.of(outcome.config.family),
                )
                for outcome in view.observed[self._mirrored :]
            ]
        )
        self._mirrored = len(view.observed)
        if self._asked is not None:
            self.study.tell(self._asked, state=TrialState.FAIL)  # samplers learn from outcomes only, and pass it over
        self._asked = self.study.ask()
        return self.study.get_trials(deepcopy=False)[self._asked.number]
