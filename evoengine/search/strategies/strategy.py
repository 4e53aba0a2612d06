"""The strategy of a search: asks a sampler for proposals, and decides which outcomes it may use.

Several candidates are in flight at a time and finish in any order. For a search to be repeatable, and resumable as if
it had never stopped, the proposal of trial ``n`` depends only on the seed, ``n``, and the outcomes of the trials before
``n - lag``, in order of their numbers. The lag covers the candidates in flight, so a proposal waits for a candidate
only if that one is much slower than those after it. Trials within the lag are visible as configs without outcomes. The
first trials of a study, its head, depend on no outcome, so that compilers have work while a device starts. The trials
after the head depend on more and more outcomes, until only those within the lag are missing.

Two searches with the same seed, worker counts, starts and budget, on a device that reports the same result for the same
kernel, therefore end with the same set of evaluations, however often one of them is killed and resumed. Which of two
configs with the same machine code is recorded as the duplicate may differ.

On a GPU no two searches measure the same times, so a proposal waits for nothing there and depends on all outcomes that
are known (see :mod:`evoengine.search.strategies.outcome_order`). A resumed search continues from the stored ones.

In both cases nothing is evaluated twice. Two concurrent searches on one study share its budget, but receive each
other's outcomes only when they are restarted, so their set of evaluations depends on which of them is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from evoengine.model import Config, Provenance, Status
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.family_bandit import FamilyBandit
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.outcome_order import ArrivalOrder, Known, OutcomeOrder, TrialOrder
from evoengine.search.strategies.sampler import START, NoPruner, Offspring, PastTrial, Pruner, Sampler, View
from evoengine.search.strategies.seen_configs import SeenConfigs
from evoengine.space.family_spaces import FamilySpaces

_LOG_BATCH: Final = 25
"""Number of trials after which the log receives them even if the search is never idle."""

_TRIES: Final = 3
"""Proposals of a sampler per trial before one that the pruner rejects is accepted."""


@dataclass(frozen=True)
class Proposal:
    """A config to evaluate."""

    config: Config
    number: int
    """Trial number, counted over the life of the study."""
    provenance: Provenance | None = None
    """How the config was made, where the strategy reports it; None for a proposal that is repeated after a kill."""


class TrialLog(Protocol):
    """Log of finished trials for other tools; it follows the stored evaluations and may lag behind."""

    def complete(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Adds earlier trials that the log lacks, without waiting for the file."""

    def append(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Adds finished trials, without waiting for the file."""

    def close(self) -> None:
        """Waits until all trials are stored, and closes the file."""


class Strategy:
    """An ask-and-tell search algorithm around a sampler. It never proposes the same config twice.

    The stored evaluations are authoritative. On resuming, evaluated trials are skipped, trials that were in flight are
    proposed again under their numbers, and the sampler continues as if nothing had happened. The trial log follows.

    Args:
        spaces: Valid configs, by family.
        sampler: Maker of proposals.
        seed: Random seed; every trial derives its own generator from it and its number.
        log: Storage of trials for other tools; None for none.
        history: Outcomes of the study so far.
        pruner: Pruner that rejects configs that are not worth a measurement; None for none.
        in_order: Whether proposals depend on outcomes in the order of their trials, not in that of their arrival.
    """

    def __init__(
        self,
        spaces: FamilySpaces,
        sampler: Sampler,
        seed: int,
        log: TrialLog | None = None,
        history: Sequence[Outcome] = (),
        pruner: Pruner | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        self._pruner = pruner or NoPruner()
        self._spaces = spaces
        self._sampler = sampler
        self._parameters = Parameters(spaces)
        self._seed = seed
        self._log = log
        self._seen = SeenConfigs(spaces)
        self._bandit = FamilyBandit()
        self._known: dict[int, Outcome] = {}
        self._unfinished: dict[int, Config] = {}
        self._queue: list[Config] = []
        self._later: list[Future[list[Config]]] = []
        self._trials: list[PastTrial] = []
        self._unwritten: list[Outcome] = []
        others = self._index(history)
        self._outcomes: OutcomeOrder = TrialOrder(others) if in_order else ArrivalOrder(others)
        self._unchecked = list(history)

    @property
    def exhausted(self) -> bool:
        """Whether every valid config has been proposed."""
        return self._seen.exhausted

    def ask(self, lag: int = 0, head: int = 0) -> Proposal | None:
        """Returns the next config to evaluate, valid and new.

        Args:
            lag: Number of preceding trials on whose outcomes the proposal does not depend, so that they may still be in
                flight.
            head: Number of first trials of a study that depend on no outcome.

        Returns:
            None when the space is exhausted, when an earlier outcome must be reported first, or while :attr:`awaited`
            configs come next.
        """
        self._skip_evaluated(lag, head)
        number = len(self._trials)
        known = self._outcomes.known(number, lag, head)
        unfinished = self._unfinished.pop(number, None)
        made: Config | Offspring | None = unfinished
        if unfinished is None or unfinished in self._seen:
            if known.waits:
                return None
            made = self._choose(number, known)
        if made is None:
            return None
        config, provenance = (made.config, made.provenance) if isinstance(made, Offspring) else (made, None)
        self._add_trial(config, known)
        return Proposal(config, number, provenance)

    def tell(self, proposal: Proposal, value_us: float | None, status: Status, row_id: int | None = None) -> None:
        """Reports a stored evaluation; ``value_us`` is None when it failed."""
        outcome = Outcome(proposal.config, value_us, status, proposal.number, row_id)
        self._outcomes.add(proposal.number, outcome)
        if self._log is not None:
            self._unwritten.append(outcome)
            if len(self._unwritten) >= _LOG_BATCH:
                self._write()

    def tell_provisional(self, proposal: Proposal, status: Status) -> None:
        """Reports a failure that is not stored yet; :meth:`tell` follows, or the search ends."""
        self._outcomes.add(proposal.number, Outcome(proposal.config, None, status, proposal.number))

    def discard(self, proposal: Proposal) -> None:
        """Withdraws a proposal that is not evaluated by this search; its config is not proposed again."""
        self._outcomes.add(proposal.number, None)

    def enqueue(self, configs: Iterable[Config]) -> None:
        """Adds configs to propose before any other, such as known good ones; invalid and seen ones are ignored."""
        self._queue.extend(config for config in dict.fromkeys(configs) if self._is_new(config))

    def enqueue_later(self, configs: Future[list[Config]]) -> None:
        """Adds configs that are still computed; they follow those that were added before, whenever they are known."""
        self._later.append(configs)

    @property
    def awaited(self) -> tuple[Future[list[Config]], ...]:
        """Configs that come next and are still computed."""
        return tuple(configs for configs in self._later[:1] if not configs.done())

    def resume(self, proposals: Mapping[int, Config]) -> None:
        """Adds the unfinished trials of a killed search: proposed again under their old numbers, or else enqueued."""
        for number, config in sorted(proposals.items()):
            if number >= len(self._trials) and number not in self._known and self._spaces.contains(config):
                self._unfinished[number] = config
            elif self._spaces.contains(config) and config not in self._seen:
                self._queue = [config, *(other for other in self._queue if other != config)]

    def flush(self) -> None:
        """Passes finished trials to the trial log; the search loop calls this while it is idle."""
        if self._unwritten:
            self._write()

    def close(self) -> None:
        """Writes the remaining trials and closes the trial log."""
        self._write()
        if self._log is not None:
            self._log.close()

    def _write(self) -> None:
        """Passes trials to the log, first those of earlier runs, which may have been killed before they wrote them."""
        if self._log is not None:
            self._log.complete(self._parameters, self._unchecked)
            self._log.append(self._parameters, self._unwritten)
        self._unchecked, self._unwritten = [], []

    def _index(self, history: Sequence[Outcome]) -> list[Outcome]:
        """Indexes outcomes by trial; returns those without a trial of their own, which are visible from the start."""
        others = []
        for outcome in history:
            if outcome.number is None or outcome.number < 0 or outcome.number in self._known:
                others.append(outcome)
                self._seen.add(outcome.config)
            else:
                self._known[outcome.number] = outcome
        return others

    def _skip_evaluated(self, lag: int, head: int) -> None:
        """Advances past trials that an earlier run has evaluated."""
        while (outcome := self._known.get(len(self._trials))) is not None:
            number = len(self._trials)
            known = self._outcomes.known(number, lag, head)  # read first: a proposal must not use its own outcome
            self._outcomes.add(number, outcome)
            self._add_trial(outcome.config, known)

    def _add_trial(self, config: Config, known: Known) -> None:
        self._trials.append(PastTrial(config, known.count))
        self._seen.add(config)
        self._queue = [other for other in self._queue if other != config]

    def _choose(self, number: int, known: Known) -> Config | Offspring | None:
        observed = self._outcomes.ordered[: known.count]
        families = self._bandit.update(observed)
        while True:
            for config in self._queue:
                if not families.is_behind(config.family):
                    return Offspring(config, START)
            if not self._later:
                break
            if not self._later[0].done():
                return None
            self.enqueue(self._later.pop(0).result())
        if self._seen.exhausted:
            return None
        pending = [self._trials[trial].config for trial in known.hidden]
        self._pruner.learn(observed)
        view = View(number, observed, pending, self._trials, self._seen, self._queue, self._pruner)
        return self._propose(view, np.random.default_rng([self._seed, number]))

    def _propose(self, view: View, rng: np.random.Generator) -> Config | Offspring:
        """Returns the sampler's first proposal that is not pruned, or the last of a few where all are."""
        for _ in range(_TRIES):
            made = self._sampler.propose(view, rng)
            config = made.config if isinstance(made, Offspring) else made
            if config in view.deferred or not view.pruner.prunes(config):
                break
        return made

    def _is_new(self, config: Config) -> bool:
        return self._spaces.contains(config) and config not in self._seen and config not in self._queue
