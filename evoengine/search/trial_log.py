"""Optuna study of a search in the leaderboard file, for Optuna's own tools such as its dashboard.

The evaluations are the truth and the Optuna study follows them, written by Optuna's public functions: trials that a
killed process did not write are written by the next search on the study.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final
from urllib.parse import quote

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from evoengine.documents.bounds import parse_json
from evoengine.errors import StoreError
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard, TrialFacts
from evoengine.model import Config
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.optuna_adapter import quiet_optuna
from evoengine.search.strategies.outcome import Outcome

PREFIX: Final = "evoengine:"
"""Prefix of the user attributes of studies and trials."""

_Job = Callable[[optuna.Study], None]

_DAMAGE: Final = (
    OptunaError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Errors that Optuna raises for a journal with wrong entries, or for tables of another version of Optuna."""


class TrialWriter:
    """A :class:`~evoengine.search.strategies.strategy.TrialLog` that writes an Optuna study in a thread of its own.

    The thread starts with the first trial: a search without new trials needs no Optuna storage.

    Args:
        board: Leaderboard whose file holds the Optuna study.
        study: Study of the leaderboard.

    Raises:
        StoreError: An earlier write failed; every method raises it.
    """

    def __init__(self, board: Leaderboard, study: Study) -> None:
        self._board = board
        self._study = study
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None
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
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self._raise_error()

    def _submit(self, job: _Job) -> None:
        self._raise_error()
        if self._thread is None:
            thread = Thread(target=self._run, name="optuna-trials", daemon=True)
            thread.start()  # may fail for lack of memory; then there is no thread to wait for
            self._thread = thread
        self._jobs.put(job)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            study = open_optuna_study(self._board, self._study)
            with _storage_errors(self._board.name):
                for job in iter(self._jobs.get, None):
                    job(study)
        except Exception as error:  # noqa: BLE001 - raised again by the next call
            self._error = error

    def _add(self, study: optuna.Study, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        facts = self._board.trial_facts([outcome.row_id for outcome in outcomes if outcome.row_id is not None])
        study.add_trials([_trial(parameters, outcome, facts.get(outcome.row_id or 0)) for outcome in outcomes])


class _LeaderboardJournal(BaseJournalBackend):
    """Journal of one study's Optuna trials in the leaderboard file.

    Optuna's journal storage replays it. Adding a trial is one short entry, where Optuna's relational storage makes some
    sixty queries.

    Args:
        board: Leaderboard.
        study: Study of the leaderboard.
    """

    def __init__(self, board: Leaderboard, study: Study) -> None:
        self._board = board
        self._study = study

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Yields the entries from a number on, so that Optuna refuses a wrong one before the next one is unpacked."""
        return (parse_json(entry, finite=False) for entry in self._board.journal(self._study, log_number_from))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Appends entries in one transaction."""
        self._board.append_journal(self._study, [json.dumps(log, separators=(",", ":")).encode() for log in logs])


def open_optuna_study(board: Leaderboard, study: Study) -> optuna.Study:
    """Opens the Optuna study of a leaderboard's study; creates it if there is none, with facts about the search.

    Raises:
        StoreError: The leaderboard cannot be used, or the journal is damaged.
    """
    quiet_optuna()
    with _storage_errors(board.name):
        storage = JournalStorage(_LeaderboardJournal(board, study))
        name = _stored_name(storage) or study.title
        found = optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)
        _describe(found, study)
    return found


def optuna_studies(board: Leaderboard) -> BaseStorage:
    """Copies the Optuna studies of all leaderboard studies to memory, for tools that show several at once.

    Studies of files before version 7, which held Optuna's own tables, are copied too unless they were continued since.

    Raises:
        StoreError: The leaderboard cannot be used, a journal is damaged, or another version of Optuna made the tables.
    """
    quiet_optuna()
    storage = InMemoryStorage()
    with _storage_errors(board.name):
        for study in board.studies():
            if any(board.journal(study)):
                journal = JournalStorage(_LeaderboardJournal(board, study))
                optuna.copy_study(
                    from_study_name=_stored_name(journal) or study.title, from_storage=journal, to_storage=storage,
                    to_study_name=study.title,
                )  # fmt: skip
            elif not board.on_server and board.has_table("studies"):
                url = f"sqlite:///file:{quote(str(board.path.absolute()))}?uri=true"  # whatever characters the path has
                if study.name not in optuna.get_all_study_names(url):
                    continue
                optuna.copy_study(
                    from_study_name=study.name, from_storage=url, to_storage=storage, to_study_name=study.title
                )
    return storage


def _stored_name(journal: BaseStorage) -> str:
    """Name of the study in a journal, which holds one; earlier versions named it otherwise. Empty if there is none."""
    return next(iter(optuna.get_all_study_names(journal)), "")


def _describe(found: optuna.Study, study: Study) -> None:
    """Stores what was optimised, and whether times are predictions, for Optuna's dashboard."""
    scope = study.scope
    times = "predicted us" if scope.predicted else "us"
    facts = {
        "problem": scope.problem,
        "device": scope.device,
        "arch": scope.arch,
        "families": study.key.family,
        "times": f"{times}, {scope.method}",
    }
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
def _storage_errors(name: str) -> Iterator[None]:
    """Converts errors of a damaged journal, and of tables that Optuna cannot read, to StoreError."""
    try:
        yield
    except _DAMAGE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise StoreError(f"{name}: its Optuna trials cannot be used: {reason}") from error
