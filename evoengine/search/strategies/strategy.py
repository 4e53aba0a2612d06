"""What a strategy is, and the one that makes proposals follow from the seed alone, however candidates finish.

Candidates are under way at the same time and finish in any order. For a search that can be repeated, and resumed as if
it had never stopped, the proposal of trial ``n`` may depend on nothing but the seed, ``n``, and the outcomes of the
trials before ``n - lag``, in order of their numbers. The lag covers what is under way, so nobody waits for a candidate
unless it is much slower than those after it. What lies within the lag is known as a config without an outcome. The
first trials of a study, its head, depend on no outcome, so that compilers have work while a GPU gets ready; those after
them hear of more outcomes each, until the lag is all that they do not know.

What follows from it: of two searches with the same seed, number of workers, starts and budget, on a device that says
the same of a kernel each time, both end with the same set of evaluations, however often one is killed and resumed.
Which of two configs with the same machine code is the duplicate may differ. Where times scatter, a resumed search goes
on from the stored ones, and nothing is evaluated twice. Two searches on one study at the same time share its budget and
evaluate nothing twice, but do not hear of each other's outcomes before they are started again, so the set then depends
on which of them was faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from evoengine.model import Config, Provenance, Status
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.family_bandit import FamilyBandit
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.seen_configs import SeenConfigs
from evoengine.space.diagram.decision_diagram import Rows
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace

_LOG_BATCH: Final = 25
"""Trials after which the log receives them even if the search never waits."""

_TRIES: Final = 3
"""Proposals of a sampler that are looked at for one trial before a hopeless one is taken."""

_CATCH_UP: Final = 6, 5
"""Outcomes that trials after the head hear of, over these trials: a GPU works off the head faster than compilers add to
it, and these would wait for it if all of the head had to be told first."""

START: Final = Provenance("start")
"""Of a config that the search began with: the search space or an earlier search named it."""


@dataclass(frozen=True)
class Proposal:
    """A config that a strategy wants to see evaluated."""

    config: Config
    number: int
    """Trial number, counted over the study's life."""
    descent: Provenance | None = None
    """Where it came from, if the strategy says; a proposal that is made again after a kill does not say it again."""


class Strategy(Protocol):
    """Asks for configs and is told what became of them. It never asks for the same config twice."""

    @property
    def exhausted(self) -> bool:
        """Whether every valid config has been proposed."""

    def ask(self, lag: int = 0, head: int = 0) -> Proposal | None:
        """The next config to evaluate, valid and new.

        Args:
            lag: proposals that may be under way at the same time; the answer does not depend on the outcomes of as
                many trials before it.
            head: so many first trials of a study depend on no outcome at all; those after it catch up.

        Returns:
            None when the space is exhausted, or when an older outcome must be told first.
        """

    def tell(self, proposal: Proposal, value_us: float | None, status: Status, row_id: int | None = None) -> None:
        """Reports a stored evaluation; ``value_us`` is None when it failed."""

    def tell_provisional(self, proposal: Proposal, value_us: float | None, status: Status) -> None:
        """Reports an evaluation that is known but not stored yet; :meth:`tell` follows, or the search ends."""

    def discard(self, proposal: Proposal) -> None:
        """Takes a proposal back that is not evaluated here; its config is not proposed again."""

    def enqueue(self, configs: Iterable[Config]) -> None:
        """Configs to propose before any other, such as known good ones."""

    def resume(self, proposals: Mapping[int, Config]) -> None:
        """What a killed search left undone, by trial number: proposed again, under the same number where it is free."""

    def flush(self) -> None:
        """Passes finished trials to the log; the loop calls this when it has to wait."""

    def close(self) -> None:
        """Flushes and lets go of the file."""


class Pruner(Protocol):
    """Says which configs are not worth a measurement. Its answers follow from the outcomes in their order."""

    def learn(self, observed: Sequence[Outcome]) -> None:
        """Outcomes in order; they begin with those of the call before."""

    def hopeless(self, config: Config) -> bool:
        """Whether a config need not be proposed, after what was learned."""

    def first_worthwhile(self, space: ValidSpace, rows: Rows) -> int | None:
        """Place of the first of many configs of one family that is not hopeless; None if there is none."""


class NoPruner:
    """A :class:`Pruner` that finds nothing hopeless."""

    def learn(self, observed: Sequence[Outcome]) -> None:
        """Nothing."""

    def hopeless(self, config: Config) -> bool:
        """No."""
        return False

    def first_worthwhile(self, space: ValidSpace, rows: Rows) -> int | None:
        """The first."""
        return 0 if len(rows) else None


@dataclass(frozen=True)
class View:
    """All that a proposal may depend on."""

    number: int
    observed: Sequence[Outcome]
    """Outcomes in order; a later view of the same study begins with the same ones."""
    pending: Sequence[Config]
    """Proposed, but too lately for their outcomes to count."""
    archive: SeenConfigs
    seeds: Sequence[Config]
    """Enqueued configs that were put off, all valid and unseen."""
    screen: Pruner
    """What is not worth a measurement, by all that a sampler cannot know: it should propose something else."""


@dataclass(frozen=True)
class Child:
    """A config and its parents."""

    config: Config
    descent: Provenance


class Sampler(Protocol):
    """Makes proposals out of what is known. It may remember what it computed, but its answers follow from the view."""

    def propose(self, view: View, rng: np.random.Generator) -> Config | Child:
        """An unseen valid config, with its parents if it has any; never called once the space is exhausted."""


class TrialLog(Protocol):
    """Log of finished trials for other tools; it follows the stored evaluations and may lag behind."""

    def complete(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Adds earlier trials that the log lacks, without waiting for the file."""

    def append(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Adds finished trials, without waiting for the file."""

    def close(self) -> None:
        """Waits until all trials are stored, and closes the file."""


@dataclass
class _Told:
    """Outcomes by trial number, and the longest beginning without a gap."""

    first: list[Outcome]
    by_number: dict[int, Outcome | None] = field(default_factory=dict)
    """None for trials that were taken back."""
    complete: int = 0
    """Trials before this number have an outcome."""
    ends: list[int] = field(default_factory=list)
    """For each complete trial, how many outcomes there are up to and with it."""

    def __post_init__(self) -> None:
        self.ordered = list(self.first)

    def add(self, number: int, outcome: Outcome | None) -> None:
        """One more."""
        self.by_number.setdefault(number, outcome)
        while self.complete in self.by_number:
            found = self.by_number[self.complete]
            if found is not None:
                self.ordered.append(found)
            self.ends.append(len(self.ordered))
            self.complete += 1

    def before(self, number: int) -> Sequence[Outcome]:
        """Outcomes of the trials before one, all of which are complete."""
        return self.ordered[: self.ends[number - 1] if number > 0 else len(self.first)]


class OrderedStrategy:
    """A :class:`Strategy` around a sampler.

    The stored evaluations are the truth: on resuming, trials that they hold are passed over, those that were under way
    are proposed again under their numbers, and the sampler goes on as if nothing had happened. The log only follows.

    Args:
        spaces: the valid configs, family by family.
        sampler: makes the proposals.
        seed: all randomness derives from it and the trial number.
        log: where trials are kept for other tools; None for nowhere.
        history: outcomes of the study so far.
        screen: passes over what is not worth a measurement; None for nothing.
    """

    def __init__(
        self,
        spaces: FamilySpaces,
        sampler: Sampler,
        seed: int,
        log: TrialLog | None = None,
        history: Sequence[Outcome] = (),
        screen: Pruner | None = None,
    ) -> None:
        self._screen = screen or NoPruner()
        self._spaces = spaces
        self._sampler = sampler
        self._parameters = Parameters(spaces)
        self._seed = seed
        self._log = log
        self._archive = SeenConfigs(spaces)
        self._standings = FamilyBandit()
        self._known: dict[int, Outcome] = {}
        self._undone: dict[int, Config] = {}
        self._queue: list[Config] = []
        self._proposed: list[Config | None] = []
        self._unwritten: list[Outcome] = []
        self._told = _Told(self._sort(history))
        self._unchecked = list(history)

    @property
    def exhausted(self) -> bool:
        """See :attr:`Strategy.exhausted`."""
        return self._archive.exhausted

    def ask(self, lag: int = 0, head: int = 0) -> Proposal | None:
        """See :meth:`Strategy.ask`."""
        self._pass_over()
        number = len(self._proposed)
        horizon = _horizon(number, lag, head)
        undone = self._undone.pop(number, None)
        made: Config | Child | None = undone
        if undone is None or undone in self._archive:
            if horizon > self._told.complete:
                return None
            made = self._choose(number, horizon)
        if made is None:
            return None
        config, descent = (made.config, made.descent) if isinstance(made, Child) else (made, None)
        self._propose(config)
        return Proposal(config, number, descent)

    def tell(self, proposal: Proposal, value_us: float | None, status: Status, row_id: int | None = None) -> None:
        """See :meth:`Strategy.tell`."""
        outcome = Outcome(proposal.config, value_us, status, proposal.number, row_id)
        self._told.add(proposal.number, outcome)
        if self._log is not None:
            self._unwritten.append(outcome)
            if len(self._unwritten) >= _LOG_BATCH:
                self._write()

    def tell_provisional(self, proposal: Proposal, value_us: float | None, status: Status) -> None:
        """See :meth:`Strategy.tell_provisional`."""
        self._told.add(proposal.number, Outcome(proposal.config, value_us, status, proposal.number))

    def discard(self, proposal: Proposal) -> None:
        """See :meth:`Strategy.discard`."""
        self._told.add(proposal.number, None)

    def enqueue(self, configs: Iterable[Config]) -> None:
        """See :meth:`Strategy.enqueue`; configs that are invalid or seen are passed over."""
        self._queue.extend(config for config in dict.fromkeys(configs) if self._is_new(config))

    def resume(self, proposals: Mapping[int, Config]) -> None:
        """See :meth:`Strategy.resume`; what cannot keep its number is enqueued."""
        for number, config in sorted(proposals.items()):
            if number >= len(self._proposed) and number not in self._known and self._spaces.contains(config):
                self._undone[number] = config
            elif self._spaces.contains(config) and config not in self._archive:
                self._queue = [config, *(other for other in self._queue if other != config)]

    def flush(self) -> None:
        """See :meth:`Strategy.flush`."""
        if self._unwritten:
            self._write()

    def close(self) -> None:
        """See :meth:`Strategy.close`."""
        self._write()
        if self._log is not None:
            self._log.close()

    def _write(self) -> None:
        """Passes trials to the log, first those of earlier runs, which may have been killed before they wrote them."""
        if self._log is not None:
            self._log.complete(self._parameters, self._unchecked)
            self._log.append(self._parameters, self._unwritten)
        self._unchecked, self._unwritten = [], []

    def _sort(self, history: Sequence[Outcome]) -> list[Outcome]:
        """Remembers outcomes by their trial; returns those without one of their own, which count from the start."""
        others = []
        for outcome in history:
            if outcome.number is None or outcome.number < 0 or outcome.number in self._known:
                others.append(outcome)
                self._archive.add(outcome.config)
            else:
                self._known[outcome.number] = outcome
        return others

    def _pass_over(self) -> None:
        """Goes past trials that an earlier run has evaluated."""
        while (outcome := self._known.get(len(self._proposed))) is not None:
            self._told.add(len(self._proposed), outcome)
            self._propose(outcome.config)

    def _propose(self, config: Config) -> None:
        self._proposed.append(config)
        self._archive.add(config)
        self._queue = [other for other in self._queue if other != config]

    def _choose(self, number: int, horizon: int) -> Config | Child | None:
        observed = self._told.before(horizon)
        known = self._standings.of(observed)
        for config in self._queue:
            if not known.trails(config.family):
                return Child(config, START)
        if self._archive.exhausted:
            return None
        pending = [config for config in self._proposed[horizon:] if config is not None]
        self._screen.learn(observed)
        view = View(number, observed, pending, self._archive, self._queue, self._screen)
        return self._worthwhile(view, np.random.default_rng([self._seed, number]))

    def _worthwhile(self, view: View, rng: np.random.Generator) -> Config | Child:
        """The sampler's first proposal that is not hopeless; the last of some, where all are."""
        for _ in range(_TRIES):
            made = self._sampler.propose(view, rng)
            config = made.config if isinstance(made, Child) else made
            if config in view.seeds or not view.screen.hopeless(config):
                break
        return made

    def _is_new(self, config: Config) -> bool:
        """Whether it is valid, and neither seen nor waiting."""
        return self._spaces.contains(config) and config not in self._archive and config not in self._queue


def _horizon(number: int, lag: int, head: int) -> int:
    """Trials before this one are what a proposal may depend on; it never falls from one trial to the next."""
    if number < head:
        return 0
    heard, trials = _CATCH_UP
    return max(0, min(number - lag, (number - head + 1) * heard // trials))
