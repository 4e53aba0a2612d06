"""Trial log: passes finished trials to a process that writes them to an Optuna study in the leaderboard file.

The evaluations are the truth and the Optuna study follows them: trials that a killed process did not write are written
by the next search on the study. Writing takes about 10 ms of CPU time per trial, so it has a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue

from evoengine.errors import EvoEngineError, StoreError
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.optuna_study import PROCESS_NAME, Batch, FinishedTrial, StudySpec, write_batches
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.outcome import Outcome


class TrialWriter:
    """A :class:`~evoengine.search.strategies.strategy.TrialLog` that writes an Optuna study in a process of its own.

    The process starts with the first trial: a search without new trials needs no Optuna storage. The thread that makes
    the first call must live until :meth:`close`.

    Args:
        board: Leaderboard whose file holds the Optuna study.
        study: Study of the leaderboard.

    Raises:
        StoreError: An earlier write failed; every method raises it.
    """

    def __init__(self, board: Leaderboard, study: Study) -> None:
        self._board = board
        self._study = study
        self._context = multiprocessing.get_context("spawn")
        self._closing = self._context.Event()
        self._batches: Queue[Batch | None] = self._context.Queue()
        self._process: SpawnProcess | None = None
        self._result: Connection | None = None
        self._error: EvoEngineError | None = None

    def complete(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Queues earlier trials; those that the Optuna study has are not written again."""
        self._submit(parameters, outcomes, only_missing=True)

    def append(self, parameters: Parameters, outcomes: Sequence[Outcome]) -> None:
        """Queues finished trials."""
        self._submit(parameters, outcomes, only_missing=False)

    def close(self) -> None:
        """Waits until all queued trials are written, and ends the process."""
        process, self._process = self._process, None
        if process is not None:
            self._closing.set()
            self._batches.put(None)
            self._receive(None)
            process.join()
            self._batches.close()
        self._raise_error()

    def _submit(self, parameters: Parameters, outcomes: Sequence[Outcome], *, only_missing: bool) -> None:
        self._receive(0.0)
        self._raise_error()
        if not outcomes:
            return
        if self._process is None:
            self._start(parameters)
        trials = (
            FinishedTrial(one.config.family, parameters.params(one.config), one.value_us, one.status, one.row_id)
            for one in outcomes
        )
        self._batches.put(Batch(tuple(trials), only_missing))

    def _start(self, parameters: Parameters) -> None:
        distributions = {family: parameters.of(family) for family in parameters.tunables}
        spec = StudySpec(self._board.url, self._study, distributions)
        self._result, result = self._context.Pipe(duplex=False)
        arguments = (spec, self._batches, self._closing, result, os.getpid())
        self._process = self._context.Process(target=write_batches, args=arguments, name=PROCESS_NAME, daemon=True)
        self._process.start()
        result.close()

    def _receive(self, timeout_s: float | None) -> None:
        """Takes the result of the process, if it has ended; with None, waits for its end."""
        if self._result is None or not (timeout_s is None or self._result.poll(timeout_s)):
            return
        try:
            self._error = self._result.recv()
        except (EOFError, OSError):
            self._error = StoreError(f"{self._board.path}: the process that writes the Optuna study died")
        with suppress(OSError):
            self._result.close()
        self._result = None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
