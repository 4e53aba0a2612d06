"""Optuna's tables in the leaderboard file: the lasting record of a study's trials, readable by Optuna's own tools."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from evoengine.errors import StoreError
from evoengine.leaderboard.connection import store_errors
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.distributions import Parameters
from evoengine.search.outcome import Outcome

if TYPE_CHECKING:
    from pathlib import Path

STATUS_ATTR: Final = "evoengine:status"
"""User attribute of an Optuna trial that holds our status."""

_CREATION_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
_LOST_CREATION_RACE: Final = ("already exists", "UNIQUE constraint")

_LAST: Final = """
    SELECT (SELECT coalesce(max(trial_id), 0) FROM trials), (SELECT count(*) FROM trials WHERE study_id = ?)
"""
"""The last trial's id in the file, and how many trials a study has."""
_TRIAL: Final = """
    INSERT INTO trials (trial_id, number, study_id, state, datetime_start, datetime_complete) VALUES (?, ?, ?, ?, ?, ?)
"""
_ATTRIBUTE: Final = "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (?, ?, ?)"
_PARAM: Final = "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) VALUES (?, ?, ?, ?)"
_VALUE: Final = "INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (?, 0, ?, 'FINITE')"

Columns = tuple[Any, ...]


class OptunaTrialLog:
    """A :class:`~evoengine.search.strategy.TrialLog` in Optuna's RDB tables of a leaderboard file.

    It follows the evaluations, which are the truth: trials that a killed process did not write are written by the next.
    Trials are inserted whole, many in one transaction, straight into the tables: Optuna's own ``add_trial`` asks the
    database several questions per parameter, all of which have known answers here, and costs fifty times as much.

    Raises:
        StoreError: the file cannot be used; every method raises it too.
    """

    def __init__(self, board: Leaderboard, study: Study) -> None:
        self._board = board
        self._of = study
        self._path = board.path
        self._engine: Any = None

    @cached_property
    def _study(self) -> optuna.Study:
        """Opened when it is needed, since a search that is complete does not."""
        quiet_optuna()
        storage = _open_storage(self._board)
        self._engine = storage.engine
        with _storage_errors(self._path):
            study = optuna.create_study(storage=storage, study_name=self._of.name, load_if_exists=True)
            _describe(study, self._of)
        return study

    def open(self) -> None:
        """Makes the study's tables; that takes longer than a hundred trials."""
        _ = self._study

    def known(self, parameters: Parameters) -> set[Config]:
        """Configs whose trials it holds."""
        with _storage_errors(self._path):
            trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
        return {parameters.config(trial.params) for trial in trials}

    def append(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Stores finished trials for good."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")  # as Optuna stores it
        study_id = int(self._study._study_id)  # noqa: SLF001 - the tables' own key, which no public name gives
        with _storage_errors(self._path), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            last, count = connection.exec_driver_sql(_LAST, (study_id,)).one()
            trials = [_Trial(last + 1 + place, count + place, outcome) for place, outcome in enumerate(outcomes)]
            connection.exec_driver_sql(_TRIAL, [trial.columns(study_id, now) for trial in trials])
            connection.exec_driver_sql(_ATTRIBUTE, [trial.status() for trial in trials])
            connection.exec_driver_sql(_PARAM, [one for trial in trials for one in trial.params(parameters)])
            values = [(trial.id, trial.outcome.value_us) for trial in trials if trial.outcome.value_us is not None]
            if values:
                connection.exec_driver_sql(_VALUE, values)
            connection.commit()

    def close(self) -> None:
        """Lets go of the file."""
        if self._engine is not None:
            self._engine.dispose()


@dataclass(frozen=True)
class _Trial:
    """One outcome as rows of Optuna's tables."""

    id: int
    number: int
    outcome: Outcome

    def columns(self, study_id: int, now: str) -> Columns:
        state = TrialState.FAIL if self.outcome.value_us is None else TrialState.COMPLETE
        return self.id, self.number, study_id, state.name, now, now

    def status(self) -> Columns:
        return self.id, STATUS_ATTR, json.dumps(self.outcome.status.value)

    def params(self, parameters: Parameters) -> Iterator[Columns]:
        params = parameters.params(self.outcome.config)
        for name, column in parameters.columns(self.outcome.config.family).items():
            yield self.id, name, float(column.distribution.to_internal_repr(params[name])), column.json


def _describe(optuna_study: optuna.Study, study: Study) -> None:
    """Says in Optuna's tables, and so in its dashboard, what was searched for, and that predictions are predictions."""
    if optuna_study.metric_names is not None:
        return
    scope = study.scope
    times = "predicted us" if scope.predicted else "us"
    facts = {"problem": scope.problem, "device": scope.device, "arch": scope.arch, "times": f"{times}, {scope.method}"}
    for name, text in facts.items():
        optuna_study.set_user_attr(f"evoengine:{name}", text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        optuna_study.set_metric_names([times])


def quiet_optuna() -> None:
    """Silences Optuna's notes about every study and trial: the observer tells the user what matters."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _open_storage(board: Leaderboard) -> RDBStorage:
    """Opens Optuna's tables, or makes them; Optuna does not expect that another process makes them at the same time."""
    for pause_s in _CREATION_PAUSES_S:
        try:
            with _storage_errors(board.path):
                return RDBStorage(board.url, engine_kwargs={"creator": board.connect})
        except StoreError as error:
            if not any(words in str(error) for words in _LOST_CREATION_RACE):
                raise
        time.sleep(pause_s)
    with _storage_errors(board.path):
        return RDBStorage(board.url, engine_kwargs={"creator": board.connect})


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
