"""Optuna's tables in the leaderboard file: the lasting record of a study's trials, readable by Optuna's own tools."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from evoengine.errors import StoreError
from evoengine.leaderboard.connection import store_errors
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.optuna_tables import installed_tables
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.outcome import Outcome

STATUS_ATTR: Final = "evoengine:status"
"""User attribute of an Optuna trial that holds our status."""

_FIND_STUDY: Final = "SELECT study_id FROM studies WHERE study_name = ?"
_STUDY: Final = "INSERT INTO studies (study_name) VALUES (?)"
_DIRECTION: Final = "INSERT INTO study_directions (study_id, direction, objective) VALUES (?, 'MINIMIZE', 0)"
_FACT: Final = "INSERT OR IGNORE INTO study_user_attributes (study_id, key, value_json) VALUES (?, ?, ?)"
_METRIC: Final = """
    INSERT OR IGNORE INTO study_system_attributes (study_id, key, value_json) VALUES (?, 'study:metric_names', ?)
"""
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
    """A :class:`~evoengine.search.strategies.strategy.TrialLog` in Optuna's RDB tables of a leaderboard file.

    It follows the evaluations, which are the truth: trials that a killed process did not write are written by the next.
    Trials are inserted whole, many in one transaction, straight into the tables: Optuna's own ``add_trial`` asks the
    database several questions per parameter, all of which have known answers here, and costs fifty times as much.

    Args:
        board: whose file has the tables.
        study: the study.
        cache_dir: of the cache on disk, where a copy of the empty tables is kept; None for no copy.

    Raises:
        StoreError: the file cannot be used; every method raises it too.
    """

    def __init__(self, board: Leaderboard, study: Study, cache_dir: Path | None = None) -> None:
        self._board = board
        self._of = study
        self._path = board.path
        self._cache_dir = cache_dir
        self._opened: sqlite3.Connection | None = None

    @cached_property
    def _study(self) -> tuple[sqlite3.Connection, int]:
        """A connection and the study's key in Optuna's tables; made when needed, since a complete search needs none."""
        quiet_optuna()
        with _storage_errors(self._path):
            connection = self._opened = self._board.connect()
            installed_tables(self._cache_dir).make(connection, self._path)
            return connection, _open_study(connection, self._of)

    def open(self) -> None:
        """Makes the tables and the study."""
        _ = self._study

    def known(self, parameters: Parameters) -> set[Config]:
        """Configs whose trials it holds."""
        self.open()
        with _storage_errors(self._path):
            storage = RDBStorage(self._board.url, engine_kwargs={"creator": self._board.connect})
            try:
                study = optuna.load_study(study_name=self._of.name, storage=storage)
                trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
            finally:
                storage.engine.dispose()
        return {parameters.config(trial.params) for trial in trials}

    def append(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Stores finished trials for good."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")  # as Optuna stores it
        connection, study_id = self._study
        with _storage_errors(self._path), connection:
            connection.execute("BEGIN IMMEDIATE")
            last, count = connection.execute(_LAST, (study_id,)).fetchone()
            trials = [_Trial(last + 1 + place, count + place, outcome) for place, outcome in enumerate(outcomes)]
            connection.executemany(_TRIAL, [trial.columns(study_id, now) for trial in trials])
            connection.executemany(_ATTRIBUTE, [trial.status() for trial in trials])
            connection.executemany(_PARAM, [one for trial in trials for one in trial.params(parameters)])
            values = [(trial.id, trial.outcome.value_us) for trial in trials if trial.outcome.value_us is not None]
            connection.executemany(_VALUE, values)

    def close(self) -> None:
        """Lets go of the file."""
        if self._opened is not None:
            self._opened.close()


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


def _open_study(connection: sqlite3.Connection, study: Study) -> int:
    """Finds the study in Optuna's tables, or makes it; returns its key there.

    They also say, and so does Optuna's dashboard, what was searched for, and that predictions are predictions.
    """
    scope = study.scope
    times = "predicted us" if scope.predicted else "us"
    facts = {"problem": scope.problem, "device": scope.device, "arch": scope.arch, "times": f"{times}, {scope.method}"}
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute(_FIND_STUDY, (study.name,)).fetchone()
        if found is None:
            connection.execute(_STUDY, (study.name,))
            found = connection.execute(_FIND_STUDY, (study.name,)).fetchone()
            connection.execute(_DIRECTION, found)
        study_id = int(found[0])
        described = [(study_id, f"evoengine:{name}", json.dumps(text)) for name, text in facts.items()]
        connection.executemany(_FACT, described)
        connection.execute(_METRIC, (study_id, json.dumps([times])))
    return study_id


def quiet_optuna() -> None:
    """Silences Optuna's notes about every study and trial: the observer tells the user what matters."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


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
