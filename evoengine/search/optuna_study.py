"""The Optuna study of a search in the leaderboard file, written through Optuna's public functions.

This is the process that :class:`~evoengine.search.trial_log.TrialWriter` starts: it imports Optuna, opens the study and
adds the trials that arrive in a queue.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from evoengine.device.workers.worker_main import die_with_parent, set_process_name
from evoengine.errors import EvoEngineError, StoreError
from evoengine.leaderboard.connection import store_errors
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard, TrialFacts
from evoengine.model import Status

PREFIX: Final = "evoengine:"
"""Prefix of the user attributes of studies and trials."""

PROCESS_NAME: Final = "optuna trials"

_OPEN_TRIES: Final = 8
"""Attempts to open the storage: Optuna fails where another process creates its tables at the same time."""
_OPEN_RETRY_S: Final = 0.25


@dataclass(frozen=True)
class FinishedTrial:
    """One trial to store; picklable."""

    family: str
    params: Mapping[str, Any]
    value_us: float | None
    """Objective; None for a failed trial."""
    status: Status
    row_id: int | None


@dataclass(frozen=True)
class Batch:
    """Trials that are stored together."""

    trials: tuple[FinishedTrial, ...]
    only_missing: bool = False
    """Whether trials that the Optuna study already has are left out."""


@dataclass(frozen=True)
class StudySpec:
    """The study to write; picklable."""

    url: str
    """URL of the leaderboard."""
    study: Study
    distributions: Mapping[str, dict[str, BaseDistribution]]
    """Distributions of the parameters, by family."""


class Batches(Protocol):
    """Queue of batches between two processes; None ends it."""

    def get(self) -> Batch | None: ...


class Flag(Protocol):
    """Event that another process sets."""

    def wait(self, timeout: float | None = None) -> bool: ...


def write_batches(spec: StudySpec, batches: Batches, closing: Flag, result: Connection, parent_pid: int) -> None:
    """Writes batches until the queue ends; the entry point of the process.

    ``add_trials`` takes about 10 ms per trial and holds the write lock of the file for most of it. The process
    therefore pauses after each trial for as long as the trial took, until ``closing`` is set, so that the search can
    commit rows.

    Args:
        spec: Study to write.
        batches: Queue of batches.
        closing: Set when the search has ended and pauses are no longer needed.
        result: Receives None at the end, or the error that stopped the process.
        parent_pid: Process id of the search; this process ends with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search handles Ctrl-C and ends the queue
    die_with_parent(parent_pid)
    set_process_name(PROCESS_NAME)
    os.dup2(2, 1)  # output of a library must not mix with the search's own output
    error: EvoEngineError | None = None
    try:
        with Leaderboard(spec.url, create=False) as board, _open_study(board, spec.study) as study:
            for batch in iter(batches.get, None):
                _add(study, board, spec, batch, closing)
    except EvoEngineError as raised:
        error = raised
    except Exception as raised:  # noqa: BLE001 - every error is reported to the search
        error = StoreError(f"{spec.url}: Optuna's study cannot be written: {type(raised).__name__}: {raised}")
    result.send(error)


def _add(study: optuna.Study, board: Leaderboard, spec: StudySpec, batch: Batch, closing: Flag) -> None:
    finished = _missing(study, batch.trials) if batch.only_missing else batch.trials
    facts = board.trial_facts([trial.row_id for trial in finished if trial.row_id is not None])
    trials = (_trial(spec.distributions[one.family], one, facts.get(one.row_id or 0)) for one in finished)
    study.add_trials(_paced(trials, closing))


def _paced(trials: Iterable[FrozenTrial], closing: Flag) -> Iterator[FrozenTrial]:
    for trial in trials:
        start_s = time.monotonic()
        yield trial
        closing.wait(time.monotonic() - start_s)


def _missing(study: optuna.Study, finished: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    stored = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
    known = {frozenset(trial.params.items()) for trial in stored}
    return [trial for trial in finished if frozenset(trial.params.items()) not in known]


def _trial(
    distributions: dict[str, BaseDistribution], done: FinishedTrial, facts: TrialFacts | None
) -> FrozenTrial:
    """Builds the Optuna trial of an outcome, with the times of its row."""
    attributes: dict[str, Any] = {"status": done.status.value}
    if facts is not None:
        attributes |= {
            "row": done.row_id,
            "registers": facts.registers,
            "spill_bytes": facts.spill_bytes,
            "reason": facts.reason or None,
        }
    trial = create_trial(
        state=TrialState.FAIL if done.value_us is None else TrialState.COMPLETE,
        value=done.value_us,
        params=dict(done.params),
        distributions=distributions,
        user_attrs={f"{PREFIX}{name}": value for name, value in attributes.items() if value is not None},
    )
    if facts is not None:
        trial.datetime_start = _aware(facts.started_at or facts.recorded_at)
        trial.datetime_complete = _aware(facts.recorded_at)
    return trial


def _aware(stored: datetime) -> datetime:
    return stored.replace(tzinfo=UTC)


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
