"""Starting or resuming a study: its strategy, with the stored evaluations as history."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Config, executed_by_config
from evoengine.search.forecast.choice import ForecastChoice
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.sampler import Pruner
from evoengine.search.strategies.strategy import Strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace
from evoengine.system.futures import done_future, mapped_future

_LOG: Final = logging.getLogger(__name__)

MAX_IMPORTS: Final = 16
"""Maximum number of imported configs that a search tries first, fastest claimed time first."""


def imported_starts(board: Leaderboard, study: Study, space: FamilySpaces) -> list[Config]:
    """Imported configs for the study's problem that are valid here; they are evaluated like any candidate."""
    imported = (one.config for one in board.imports(study.scope.problem))
    return [config for config in imported if space.contains(config)][:MAX_IMPORTS]


def start_strategy(
    settings: SearchSettings,
    space: ValidSpace | FamilySpaces,
    board: Leaderboard,
    study: Study,
    starts: Iterable[Config] = (),
    pruner: Pruner | None = None,
    *,
    later: Iterable[Config] = (),
    forecast: Future[ForecastChoice] | None = None,
    log_trials: bool = True,
) -> Strategy:
    """Makes the strategy of a study, from its stored evaluations.

    Args:
        settings: Settings with the strategy and its seed.
        space: Valid configs of one family or of several.
        board: Leaderboard of the study.
        study: Study to start or resume.
        starts: Configs to try before any other; invalid and known ones are ignored.
        pruner: Pruner that rejects configs that are not worth a measurement; None for none.
        later: Configs to try after ``starts`` and the opening by forecast.
        forecast: Choice by forecast, which may still be computed; None for none.
        log_trials: Whether to write an Optuna study of the trials.

    Raises:
        UsageError: There is no such strategy, or it cannot be made.
        StoreError: The leaderboard cannot be used.
    """
    from evoengine.search.trial_log import TrialWriter

    log = TrialWriter(board, study) if log_trials else None
    history = _valid(outcomes(board.evaluations(study)), FamilySpaces.around(space))
    strategy = make_strategy(
        settings.strategy, space, settings.seed, log, history, pruner, forecast, in_order=settings.in_order
    )
    strategy.enqueue(starts)
    if forecast is not None:
        strategy.enqueue_later(mapped_future(forecast, lambda choice: list(choice.opening)))
        strategy.enqueue_later(done_future(list(later)))
    else:
        strategy.enqueue(later)
    return strategy


def _valid(history: list[Outcome], space: FamilySpaces) -> list[Outcome]:
    """Leaves out configs that the space does not have; a study has one space, so their rows were changed."""
    valid = [outcome for outcome in history if space.contains(outcome.config)]
    if len(valid) < len(history):
        rows = sorted({outcome.row_id for outcome in history} - {outcome.row_id for outcome in valid}, key=str)
        _LOG.warning("the search ignores rows with configs that its space does not have: %s", str(rows[:10]))
    return valid


def outcomes(stored: list[Stored]) -> list[Outcome]:
    """Stored evaluations as outcomes; a duplicate has the time of the kernel that it repeats."""
    executed = executed_by_config([entry.evaluation for entry in stored])
    return [
        Outcome(
            config=entry.evaluation.config,
            value_us=executed.get(entry.evaluation.config.key, entry.evaluation).value_us,
            status=entry.evaluation.status,
            number=entry.trial_number,
            row_id=entry.id,
        )
        for entry in stored
    ]
