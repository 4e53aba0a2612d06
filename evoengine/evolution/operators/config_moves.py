"""Classic counterpart of a model's configs: single changes of the parent's best config that no row has tried."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from evoengine.evolution.records import Context, Proposal
from evoengine.model import Value
from evoengine.space.search_space import SearchSpace

_CONFIGS: Final = 4
"""Configs of one proposal."""
_MOST_CHANGES: Final = 3


class ConfigMoves:
    """Proposes sparse configs: up to three changed tunables of the parent's best config."""

    name = "configs"

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns one proposal of a few configs; none if the parent has no correct row."""
        if not context.best:
            return ()
        best = context.best[0].config
        configs = tuple(_changes(context.space, best, rng) for _ in range(_CONFIGS))
        return (Proposal(self.name, (context.parent.family,), configs=configs),)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Returns None: invalid configs are left out."""
        return None


def _changes(space: SearchSpace, best: Mapping[str, Value], rng: random.Random) -> dict[str, Value]:
    """Returns other values of a few tunables."""
    found = {}
    for tunable in rng.sample(space.tunables, min(rng.randint(1, _MOST_CHANGES), len(space.tunables))):
        others = [value for value in tunable.values if value != best.get(tunable.name)]
        found[tunable.name] = rng.choice(others or list(tunable.values))
    return found
