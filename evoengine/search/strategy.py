"""What a strategy is, and how an Optuna sampler becomes one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from evoengine.model import Config, Status
from evoengine.search.archive import Archive
from evoengine.search.distributions import Parameters
from evoengine.search.trial_log import TrialLog, quiet_optuna
from evoengine.space.families import FamilySpaces

STATUS_ATTR = "evoengine:status"
"""User attribute of an Optuna trial that holds our status."""


@dataclass(frozen=True)
class Proposal:
    """A config that a strategy wants to see evaluated."""

    config: Config
    number: int
    """Trial number, counted over the strategy's life."""


@dataclass(frozen=True)
class Outcome:
    """What became of an earlier config."""

    config: Config
    value_us: float | None
    """None when it failed."""
    status: Status


class Strategy(Protocol):
    """Asks for configs and is told what became of them. It never asks for the same config twice."""

    def ask(self) -> Proposal | None:
        """The next config to evaluate, valid and new; None when the space is exhausted."""

    def tell(self, proposal: Proposal, value_us: float | None, status: Status) -> None:
        """Reports an evaluation; ``value_us`` is None when it failed."""

    def discard(self, proposal: Proposal) -> None:
        """Takes a proposal back that is not evaluated here; its config is not proposed again."""

    def enqueue(self, configs: Iterable[Config]) -> None:
        """Configs to propose before any other: seeds, or what a killed search left undone."""

    def flush(self) -> None:
        """Writes what it was told; the loop calls this when it has nothing better to do."""

    def close(self) -> None:
        """Flushes and lets go of the file."""


SamplerFactory = Callable[[Archive, int], BaseSampler]
"""Makes an Optuna sampler that hands out only valid, unseen configs, from the archive of seen configs and the seed."""


class OptunaStrategy:
    """A strategy around an Optuna sampler.

    The sampler works on a study in memory through ask/tell; finished trials are written to the log in batches. The
    evaluations are the truth: trials that the log lacks are rebuilt from ``history``.

    Args:
        spaces: the valid configs, family by family.
        make_sampler: makes the sampler; it gets the archive of seen configs and the seed.
        seed: all randomness derives from it and the trial number.
        log: where trials last; None keeps them in memory only.
        history: outcomes of the study so far.
    """

    def __init__(
        self,
        spaces: FamilySpaces,
        make_sampler: SamplerFactory,
        seed: int,
        log: TrialLog | None = None,
        history: Sequence[Outcome] = (),
    ) -> None:
        quiet_optuna()
        self._spaces = spaces
        self._log = log
        self._parameters = Parameters(spaces)
        self._archive = Archive(spaces)
        self._queue: deque[Config] = deque()
        self._unwritten: list[FrozenTrial] = []
        self._study = optuna.create_study(sampler=make_sampler(self._archive, seed))
        self._restore(history)

    def ask(self) -> Proposal | None:
        """See :meth:`Strategy.ask`."""
        queued = self._next_queued()
        if queued is None and self._archive.exhausted:
            return None
        if queued is not None:
            self._study.enqueue_trial(self._parameters.params(queued))
        trial = self._study.ask()
        config = self._parameters.suggested(trial)
        self._archive.add(config)
        return Proposal(config, trial.number)

    def tell(self, proposal: Proposal, value_us: float | None, status: Status) -> None:
        """See :meth:`Strategy.tell`."""
        if value_us is None:
            told = self._study.tell(proposal.number, state=TrialState.FAIL)
        else:
            told = self._study.tell(proposal.number, value_us)
        told.user_attrs[STATUS_ATTR] = status.value
        if self._log is not None:
            self._unwritten.append(told)

    def discard(self, proposal: Proposal) -> None:
        """See :meth:`Strategy.discard`."""
        self._study.tell(proposal.number, state=TrialState.FAIL)

    def enqueue(self, configs: Iterable[Config]) -> None:
        """See :meth:`Strategy.enqueue`; configs that are invalid or seen are passed over."""
        self._queue.extend(configs)

    def flush(self) -> None:
        """See :meth:`Strategy.flush`."""
        if self._log is not None and self._unwritten:
            self._log.append(self._unwritten)
            self._unwritten = []

    def close(self) -> None:
        """See :meth:`Strategy.close`."""
        self.flush()
        if self._log is not None:
            self._log.close()

    def _next_queued(self) -> Config | None:
        while self._queue:
            config = self._queue.popleft()
            if self._spaces.contains(config) and config not in self._archive:
                return config
        return None

    def _restore(self, history: Sequence[Outcome]) -> None:
        logged = [] if self._log is None else [trial for trial in self._log.load() if trial.state.is_finished()]
        known = {self._parameters.config(trial.params) for trial in logged}
        missing = [self._trial_of(outcome) for outcome in history if outcome.config not in known]
        if self._log is not None and missing:
            self._log.append(missing)
        self._study.add_trials([*logged, *missing])
        for config in known | {outcome.config for outcome in history}:
            self._archive.add(config)

    def _trial_of(self, outcome: Outcome) -> FrozenTrial:
        return create_trial(
            state=TrialState.FAIL if outcome.value_us is None else TrialState.COMPLETE,
            value=outcome.value_us,
            params=self._parameters.params(outcome.config),
            distributions=self._parameters.of(outcome.config.family),
            user_attrs={STATUS_ATTR: outcome.status.value},
        )
