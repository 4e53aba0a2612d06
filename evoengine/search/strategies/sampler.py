"""The protocol of a sampler, which makes proposals, and everything that a proposal may depend on.

A :class:`~evoengine.search.strategies.strategy.Strategy` asks it. The shortest one is ``builtin/random.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Provenance
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.seen_configs import SeenConfigs
from evoengine.space.index_rows import IndexRows
from evoengine.space.valid_space import ValidSpace

START: Final = Provenance("start")
"""Provenance of a config that the search starts from: named by the search space or taken from an earlier search."""


class Pruner(Protocol):
    """Rejects configs that are not worth a measurement. Its answers follow from the outcomes in order."""

    def learn(self, observed: Sequence[Outcome]) -> None:
        """Updates the pruner; ``observed`` starts with the outcomes of the previous call."""

    def prunes(self, config: Config) -> bool:
        """Whether a config should not be proposed, given the outcomes so far."""

    def first_kept(self, space: ValidSpace, rows: IndexRows) -> int | None:
        """Index of the first of many configs of one family that is not pruned; None if all are."""

    def kept_probability(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        """Estimates, in a small part of the time of :meth:`first_kept`, how likely configs are not to be pruned.

        Args:
            space: Valid configs of the family.
            rows: Configs ``[configs, tunables]``.

        Returns:
            Probabilities ``[configs]``, above 0; 1 where there is no estimate.
        """


class NoPruner:
    """A :class:`Pruner` that rejects nothing."""

    def learn(self, observed: Sequence[Outcome]) -> None: ...

    def prunes(self, config: Config) -> bool:
        return False

    def first_kept(self, space: ValidSpace, rows: IndexRows) -> int | None:
        return 0 if len(rows) else None

    def kept_probability(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        return np.ones(len(rows))


@dataclass(frozen=True)
class PastTrial:
    """An earlier proposal, and the number of outcomes that it could use."""

    config: Config
    known: int
    """Number of observed outcomes on which the proposal could depend."""


@dataclass(frozen=True)
class View:
    """Everything that a proposal may depend on, besides its random generator."""

    number: int
    """Trial number."""
    observed: Sequence[Outcome]
    """Outcomes in order; a later view of the same study starts with the same ones."""
    pending: Sequence[Config]
    """Configs that were proposed too recently for their outcomes to count."""
    trials: Sequence[PastTrial]
    """All earlier trials by number, enqueued and resumed ones included."""
    seen: SeenConfigs
    """Configs that must not be proposed again."""
    deferred: Sequence[Config]
    """Enqueued configs, all valid and unseen, of families that the bandit puts behind others; samplers may use them."""
    pruner: Pruner
    """Rejects configs for reasons that samplers cannot derive from outcomes."""


@dataclass(frozen=True)
class Offspring:
    """A config and how it was made."""

    config: Config
    provenance: Provenance


class Sampler(Protocol):
    """Makes proposals from what is known. It may cache computations, but its answers follow from the view and ``rng``.

    A built-in sampler is made by its :class:`~evoengine.search.strategies.spec.StrategySpec`. A class that is named on
    the command line, ``--strategy package.module:Class``, is constructed with the :class:`FamilySpaces` of the study.
    """

    def propose(self, view: View, rng: np.random.Generator) -> Config | Offspring:
        """Returns an unseen valid config; it is not called once the space is exhausted.

        Args:
            view: Everything known.
            rng: Random generator of this trial, seeded from the search's seed and the trial number.
        """
