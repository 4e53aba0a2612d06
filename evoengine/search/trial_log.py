"""Optuna study of a search in the leaderboard file, for Optuna's own tools such as its dashboard.

The evaluations are the truth and the Optuna study follows them, written by Optuna's public functions: trials that a
killed process did not write are written by the next search on the study.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from evoengine.errors import StoreError
from evoengine.leaderboard.connection import store_errors
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard, TrialFacts
from evoengine.model import Config
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.outcome import Outcome

PREFIX: Final = "evoengine:"
"""Prefix of the user attributes of studies and trials."""

_OPEN_TRIES: Final = 8
"""Attempts to open the storage: Optuna fails where another process creates its tables at the same time."""
_OPEN_RETRY_S: Final = 0.25

_Job = Callable[[optuna.Study], None]


class TrialWriter:
    """A :class:`~evoengine.search.strategies.strategy.TrialLog` that writes an Optuna study in a thread of its own.

    ``add_trials`` takes about 10 ms per trial, with the write lock of the file held for most of it. The thread
    therefore pauses after each trial for as long as the trial took, except in :meth:`close`, so that the search finds
    the lock free. It starts with the first trial: a search without new trials needs no Optuna storage.

    Args:
        board: Leaderboard whose file holds the Optuna study.
        study: Study of the leaderboard.

    Raises:
        StoreError: an earlier write failed; every method raises it.
    """

    def __init__(self, board: Leaderboard, study: Study) -> None:
        self._board = board
        self._study = study
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closing = Event()
        self._error: Exception | None = None

    def complete(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Queues earlier trials; those that the Optuna study has are not written again."""
        if outcomes:
            self._submit(lambda study: self._add(study, parameters, _missing(study, parameters, outcomes)))

    def append(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Queues finished trials."""
        if outcomes:
            self._submit(lambda study: self._add(study, parameters, outcomes))

    def close(self) -> None:
        """Waits until all queued trials are written, and closes the storage."""
        self._closing.set()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self._raise_error()

    def _submit(self, job: _Job) -> None:
        self._raise_error()
        if self._thread is None:
            self._thread = Thread(target=self._run, name="optuna-trials", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with _open_study(self._board, self._study) as study:
                for job in iter(self._jobs.get, None):
                    job(study)
        except Exception as error:  # noqa: BLE001 - raised again by the next call
            self._error = error

    def _add(self, study: optuna.Study, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        facts = self._board.trial_facts([outcome.row_id for outcome in outcomes if outcome.row_id is not None])
        trials = (_trial(parameters, outcome, facts.get(outcome.row_id or 0)) for outcome in outcomes)
        study.add_trials(self._paced(trials))

    def _paced(self, trials: Iterable[FrozenTrial]) -> Iterator[FrozenTrial]:
        for trial in trials:
            with self._board.write_lock:
                start_s = time.monotonic()
                yield trial
            self._closing.wait(time.monotonic() - start_s)


def quiet_optuna() -> None:
    """Silences Optuna's messages about every study and trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@contextmanager
def _open_study(board: Leaderboard, study: Study) -> Iterator[optuna.Study]:
    """Opens the Optuna study, created if there is none, with the facts about the leaderboard's study as attributes."""
    quiet_optuna()
    with _storage_errors(board.path):
        storage = _open_storage(board)
        try:
            names = optuna.get_all_study_names(storage)
            name = study.name if study.name in names else study.title  # until version 6 of the file it had the former
            found = optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)
            _describe(found, study)
            yield found
        finally:
            storage.remove_session()
            storage.engine.dispose()


def _open_storage(board: Leaderboard) -> RDBStorage:
    """Opens Optuna's storage in the file; Optuna creates missing tables.

    Raises:
        StoreError: the tables are of another version of Optuna.
    """
    for left in reversed(range(_OPEN_TRIES)):
        try:
            with store_errors(board.path):
                return RDBStorage(board.url, engine_kwargs={"creator": board.connect})
        except (StoreError, OptunaError):
            if not left:
                raise
            time.sleep(_OPEN_RETRY_S)
        except RuntimeError as error:
            raise StoreError(
                f"{board.path}: its Optuna tables do not fit Optuna {optuna.__version__}: run 'optuna storage upgrade "
                f"--storage {board.url}', or give another file ({' '.join(str(error).split())})"
            ) from error
    raise AssertionError("the last try returns or raises")


def _describe(found: optuna.Study, study: Study) -> None:
    """Stores what was optimised, and whether times are predictions, for Optuna's dashboard."""
    scope = study.scope
    times = "predicted us" if scope.predicted else "us"
    facts = {"problem": scope.problem, "device": scope.device, "arch": scope.arch, "times": f"{times}, {scope.method}"}
    known = found.user_attrs
    for name, text in facts.items():
        if f"{PREFIX}{name}" not in known:
            found.set_user_attr(f"{PREFIX}{name}", text)
    if found.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            found.set_metric_names([times])


def _missing(study: optuna.Study, parameters: Parameters, outcomes: Sequence[Outcome]) -> list[Outcome]:
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
    known: set[Config] = {parameters.config(trial.params) for trial in trials}
    return [outcome for outcome in outcomes if outcome.config not in known]


def _trial(parameters: Parameters, outcome: Outcome, facts: TrialFacts | None) -> FrozenTrial:
    """Builds the Optuna trial of an outcome, with the times of its row."""
    attributes: dict[str, Any] = {"status": outcome.status.value}
    if facts is not None:
        attributes |= {
            "row": outcome.row_id,
            "registers": facts.registers,
            "spill_bytes": facts.spill_bytes,
            "reason": facts.reason or None,
        }
    trial = create_trial(
        state=TrialState.FAIL if outcome.value_us is None else TrialState.COMPLETE,
        value=outcome.value_us,
        params=parameters.params(outcome.config),
        distributions=parameters.of(outcome.config.family),
        user_attrs={f"{PREFIX}{name}": value for name, value in attributes.items() if value is not None},
    )
    if facts is not None:
        trial.datetime_start = _aware(facts.started_at or facts.recorded_at)
        trial.datetime_complete = _aware(facts.recorded_at)
    return trial


def _aware(stored: datetime) -> datetime:
    return stored.replace(tzinfo=UTC)


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
