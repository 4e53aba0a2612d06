"""Beginning or resuming: a strategy that knows what its study has evaluated."""

from __future__ import annotations

from collections.abc import Iterable

from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Config, Evaluation, Status
from evoengine.search.registry import make_strategy
from evoengine.search.session import SearchSettings
from evoengine.search.strategy import Outcome, Strategy
from evoengine.space.families import FamilySpaces
from evoengine.space.valid import ValidSpace


def start_strategy(
    settings: SearchSettings,
    space: ValidSpace | FamilySpaces,
    board: Leaderboard,
    study: Study,
    seeds: Iterable[Config] = (),
) -> Strategy:
    """Makes the strategy of a study, from its stored trials and evaluations.

    Args:
        settings: names the strategy and its seed.
        space: the valid configs of one family or of several.
        board: where the study is stored.
        study: the study.
        seeds: configs to try before any other; those that are invalid or known are passed over.

    Raises:
        UsageError: there is no such strategy.
        StoreError: the leaderboard cannot be used.
    """
    from evoengine.search.trial_log import OptunaTrialLog

    log = OptunaTrialLog(board, study)
    history = outcomes(board.evaluations(study))
    strategy = make_strategy(settings.strategy, space, settings.seed, log, history)
    strategy.enqueue(seeds)
    return strategy


def outcomes(stored: list[Stored]) -> list[Outcome]:
    """What a strategy would have been told; a duplicate has the time of the kernel that it repeats."""
    by_key = {entry.evaluation.config.key: entry.evaluation for entry in stored}
    return [
        Outcome(
            config=entry.evaluation.config,
            value_us=_value_us(by_key.get(entry.evaluation.duplicate_of, entry.evaluation)),
            status=entry.evaluation.status,
        )
        for entry in stored
    ]


def _value_us(evaluation: Evaluation) -> float | None:
    timing = evaluation.timing
    return timing.median_us if evaluation.status is Status.OK and timing is not None else None
