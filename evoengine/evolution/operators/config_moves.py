"""Classic counterpart of a model's configs: valid configs a few tunables away from the parent's best one."""

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
_MOST_TRIES: Final = 400
"""Configs that are drawn for one proposal; most of them violate a constraint."""


class ConfigMoves:
    """Proposes sparse configs: up to three changed tunables of the parent's best config."""

    name = "configs"

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns one proposal of a few valid configs; none without a correct row or a valid config."""
        if not context.best:
            return ()
        best, space = context.best[0].config, context.space
        configs: list[dict[str, Value]] = []
        for _ in range(_MOST_TRIES):
            changes = _changes(space, best, rng)
            if changes not in configs and not space.check({**best, **changes}, context.problem, context.target):
                configs.append(changes)
            if len(configs) == _CONFIGS:
                break
        return (Proposal(self.name, (context.parent.family,), configs=tuple(configs)),) if configs else ()

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
