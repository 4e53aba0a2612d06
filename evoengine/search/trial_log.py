"""Optuna's tables in the leaderboard file: the lasting record of a study's trials, readable by Optuna's own tools."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.exceptions import OptunaError
from optuna.trial import FrozenTrial

from evoengine.errors import StoreError
from evoengine.leaderboard.connection import store_errors
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard

if TYPE_CHECKING:
    from pathlib import Path


_CREATION_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
_LOST_CREATION_RACE: Final = ("already exists", "UNIQUE constraint")


class TrialLog(Protocol):
    """Where finished trials go, so that a strategy can go on after a restart."""

    def load(self) -> Sequence[FrozenTrial]:
        """All trials so far, in order."""

    def append(self, trials: Sequence[FrozenTrial]) -> None:
        """Stores finished trials for good."""

    def close(self) -> None:
        """Lets go of the file."""


class OptunaTrialLog:
    """A :class:`TrialLog` in Optuna's RDB tables of a leaderboard file.

    Finished trials are written whole, one transaction each; what is under way lives in the sampler's memory and, for
    other processes, in the leaderboard's claims. Trials that a killed process did not write are rebuilt from the
    evaluations (see :class:`~evoengine.search.strategy.OptunaStrategy`).

    Raises:
        StoreError: the file cannot be used; every method raises it too.
    """

    def __init__(self, board: Leaderboard, study: Study) -> None:
        self._path = board.path
        quiet_optuna()
        storage = _open_storage(board)
        self._engine = storage.engine
        with _storage_errors(self._path):
            self._study = optuna.create_study(storage=storage, study_name=study.name, load_if_exists=True)

    def load(self) -> list[FrozenTrial]:
        """All trials so far, in order."""
        with _storage_errors(self._path):
            return self._study.get_trials(deepcopy=False)

    def append(self, trials: Sequence[FrozenTrial]) -> None:
        """Stores finished trials for good."""
        with _storage_errors(self._path):
            self._study.add_trials(trials)

    def close(self) -> None:
        """Lets go of the file."""
        self._engine.dispose()


def quiet_optuna() -> None:
    """Silences Optuna's notes about every study and trial: the observer tells the user what matters."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class _LeanStorage(optuna.storages.RDBStorage):
    """Writes a trial's parameters without looking each of them up first.

    Optuna asks the database two questions per parameter (is the trial still running, is the distribution the one of
    earlier trials). Here a trial is written in one piece by its only owner and the distributions come from one search
    space, so both answers are known; skipping them makes a trial about three times cheaper to store.
    """

    def _set_trial_param_without_commit(
        self,
        session: Any,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
        previous_distribution: BaseDistribution | None = None,
    ) -> None:
        from optuna.storages._rdb.models import TrialParamModel

        session.add(
            TrialParamModel(
                trial_id=trial_id,
                param_name=param_name,
                param_value=param_value_internal,
                distribution_json=distribution_to_json(distribution),
            )
        )


def _open_storage(board: Leaderboard) -> _LeanStorage:
    """Opens Optuna's tables, or makes them; Optuna does not expect that another process makes them at the same time."""
    for pause_s in _CREATION_PAUSES_S:
        try:
            with _storage_errors(board.path):
                return _LeanStorage(board.url, engine_kwargs={"creator": board.connect})
        except StoreError as error:
            if not any(words in str(error) for words in _LOST_CREATION_RACE):
                raise
        time.sleep(pause_s)
    with _storage_errors(board.path):
        return _LeanStorage(board.url, engine_kwargs={"creator": board.connect})


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    with store_errors(path):
        try:
            yield
        except OptunaError as error:
            if error.__cause__ is not None:
                with store_errors(path):
                    raise error.__cause__ from error
            raise StoreError(f"{path}: Optuna cannot use its tables: {error}") from error
