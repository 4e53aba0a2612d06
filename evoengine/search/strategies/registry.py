"""Strategies by name. A new one is a sampler in its own file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evoengine.errors import UsageError
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.strategy import OrderedStrategy, Pruner, Sampler, Strategy, TrialLog
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace

STRATEGIES: Final = ("evolution", "tpe", "cmaes", "random")
"""Names that :func:`make_strategy` knows, the default first."""


def make_strategy(
    name: str,
    space: ValidSpace | FamilySpaces,
    seed: int,
    log: TrialLog | None = None,
    history: Sequence[Outcome] = (),
    pruner: Pruner | None = None,
) -> Strategy:
    """Makes a strategy.

    Args:
        name: one of :data:`STRATEGIES`.
        space: the valid configs of one family or of several.
        seed: of all its randomness, 0 or more.
        log: where its trials are kept for other tools; None for nowhere.
        history: what the study has evaluated so far.
        pruner: passes over what is not worth a measurement; None for nothing.

    Raises:
        UsageError: there is no such strategy.
    """
    spaces = FamilySpaces.around(space)
    return OrderedStrategy(spaces, _sampler(name, spaces), seed, log, history, pruner)


def _sampler(name: str, spaces: FamilySpaces) -> Sampler:
    match name:
        case "evolution":
            from evoengine.search.strategies.evolution import EvolutionSampler

            return EvolutionSampler(spaces)
        case "tpe":
            from evoengine.search.strategies.tpe import RepairedTpeSampler

            return RepairedTpeSampler(spaces)
        case "cmaes":
            from evoengine.search.strategies.cmaes import CmaEsSampler

            return CmaEsSampler(spaces)
        case "random":
            from evoengine.search.strategies.random import UniformSampler

            return UniformSampler()
        case _:
            raise UsageError(f"unknown strategy '{name}': choose one of {', '.join(STRATEGIES)}")
