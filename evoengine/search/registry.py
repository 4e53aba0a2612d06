"""Strategies by name. A new one is a sampler in its own file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evoengine.errors import UsageError
from evoengine.search.outcome import Outcome
from evoengine.search.strategy import OrderedStrategy, Sampler, Screen, Strategy, TrialLog
from evoengine.space.families import FamilySpaces
from evoengine.space.valid import ValidSpace

STRATEGIES: Final = ("evolution", "tpe", "cmaes", "random")
"""Names that :func:`make_strategy` knows, the default first."""


def make_strategy(
    name: str,
    space: ValidSpace | FamilySpaces,
    seed: int,
    log: TrialLog | None = None,
    history: Sequence[Outcome] = (),
    screen: Screen | None = None,
) -> Strategy:
    """Makes a strategy.

    Args:
        name: one of :data:`STRATEGIES`.
        space: the valid configs of one family or of several.
        seed: of all its randomness, 0 or more.
        log: where its trials are kept for other tools; None for nowhere.
        history: what the study has evaluated so far.
        screen: passes over what is not worth a measurement; None for nothing.

    Raises:
        UsageError: there is no such strategy.
    """
    spaces = FamilySpaces.around(space)
    return OrderedStrategy(spaces, _sampler(name, spaces), seed, log, history, screen)


def _sampler(name: str, spaces: FamilySpaces) -> Sampler:
    match name:
        case "evolution":
            from evoengine.search.evolution import EvolutionSampler

            return EvolutionSampler(spaces)
        case "tpe":
            from evoengine.search.tpe import RepairedTpeSampler

            return RepairedTpeSampler(spaces)
        case "cmaes":
            from evoengine.search.cmaes import CmaEsSampler

            return CmaEsSampler(spaces)
        case "random":
            from evoengine.search.random import UniformSampler

            return UniformSampler()
        case _:
            raise UsageError(f"unknown strategy '{name}': choose one of {', '.join(STRATEGIES)}")
