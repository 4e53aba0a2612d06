"""Beginning or resuming: a strategy that knows what its study has evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Config
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.strategy import Pruner, Strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace

MOST_IMPORTS: Final = 16
"""Configs of others that a search tries first, those that claim the least time."""


def imported_seeds(board: Leaderboard, study: Study, space: FamilySpaces) -> list[Config]:
    """Configs of others for the study's problem that are valid here; they go the whole road like any candidate."""
    claimed = (one.config for one in board.imports(study.scope.problem))
    return [config for config in claimed if space.contains(config)][:MOST_IMPORTS]


def start_strategy(
    settings: SearchSettings,
    space: ValidSpace | FamilySpaces,
    board: Leaderboard,
    study: Study,
    seeds: Iterable[Config] = (),
    screen: Pruner | None = None,
    *,
    log_trials: bool = True,
) -> Strategy:
    """Makes the strategy of a study, from its stored evaluations.

    Args:
        settings: names the strategy and its seed.
        space: the valid configs of one family or of several.
        board: where the study is stored.
        study: the study.
        seeds: configs to try before any other; those that are invalid or known are passed over.
        screen: passes over what is not worth a measurement; None for nothing.
        log_trials: Whether to write an Optuna study of the trials.

    Raises:
        UsageError: there is no such strategy.
        StoreError: the leaderboard cannot be used.
    """
    from evoengine.search.trial_log import TrialWriter

    log = TrialWriter(board, study) if log_trials else None
    history = outcomes(board.evaluations(study))
    strategy = make_strategy(settings.strategy, space, settings.seed, log, history, screen)
    strategy.enqueue(seeds)
    return strategy


def outcomes(stored: list[Stored]) -> list[Outcome]:
    """What a strategy would have been told; a duplicate has the time of the kernel that it repeats."""
    by_key = {entry.evaluation.config.key: entry.evaluation for entry in stored}
    return [
        Outcome(
            config=entry.evaluation.config,
            value_us=by_key.get(entry.evaluation.duplicate_of, entry.evaluation).value_us,
            status=entry.evaluation.status,
            number=entry.trial_number,
            row_id=entry.id,
        )
        for entry in stored
    ]
