"""Strategies by name. A new one is a sampler in its own file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evoengine.errors import UsageError
from evoengine.search.strategy import Outcome, SamplerFactory, Strategy
from evoengine.search.trial_log import TrialLog
from evoengine.space.families import FamilySpaces
from evoengine.space.valid import ValidSpace

STRATEGIES: Final = ("evolution", "tpe", "random")
"""Names that :func:`make_strategy` knows, the default first."""


def make_strategy(
    name: str,
    space: ValidSpace | FamilySpaces,
    seed: int,
    log: TrialLog | None = None,
    history: Sequence[Outcome] = (),
) -> Strategy:
    """Makes a strategy.

    Args:
        name: one of :data:`STRATEGIES`.
        space: the valid configs of one family or of several.
        seed: of all its randomness, 0 or more.
        log: where its trials last; None for memory only.
        history: what the study has evaluated so far.

    Raises:
        UsageError: there is no such strategy.
    """
    from evoengine.search.strategy import OptunaStrategy

    return OptunaStrategy(FamilySpaces.around(space), _sampler_factory(name), seed, log, history)


def _sampler_factory(name: str) -> SamplerFactory:
    match name:
        case "evolution":
            from evoengine.search.evolution import EvolutionSampler

            return EvolutionSampler
        case "tpe":
            from evoengine.search.tpe import RepairedTpeSampler

            return RepairedTpeSampler
        case "random":
            from evoengine.search.random import UniformSampler

            return UniformSampler
        case _:
            raise UsageError(f"unknown strategy '{name}': choose one of {', '.join(STRATEGIES)}")
