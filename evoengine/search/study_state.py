"""In-memory state of a study: its evaluations by machine code, and their counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from evoengine.device.workers.worker_slot import KILLER
from evoengine.leaderboard.records import RowFilter, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Evaluation, Status
from evoengine.search.measurement_stats import MeasurementStats
from evoengine.search.settings import Progress


class StudyState:
    """Records evaluations in the leaderboard and caches the study's state, so that the database is queried rarely.

    Args:
        board: Leaderboard of the study.
        study: Study of the search.
        budget: Distinct candidates at which the search ends.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, board: Leaderboard, study: Study, budget: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._board = board
        self._study = study
        self._budget = budget
        self._clock = clock
        self._start_s = clock()
        self._by_code: dict[tuple[str, bool], Evaluation] = {}
        self._new = 0
        self._best_new: tuple[float, int] | None = None
        self._duplicates = 0
        self._stage_seconds: dict[str, float] = {}
        self._measurements = MeasurementStats()
        for stored in board.evaluations(study):
            self._remember(stored.evaluation)
        self._crashes = _crashes(board, study)
        self._counts = Counter(board.counts(study))
        self._evaluated = board.evaluated(study)
        best = next(iter(board.elites(study, 1)), None)
        self._best_us = best.median_us if best else None
        self._best_id = best.id if best else None
        self._best_speedup = best.speedup if best else None

    @property
    def stage_seconds(self) -> Mapping[str, float]:
        """Wall seconds by stage, summed over this run's candidates."""
        return dict(self._stage_seconds)

    @property
    def measurements(self) -> MeasurementStats:
        return self._measurements

    @property
    def best_new_id(self) -> int | None:
        """Row of the fastest correct candidate that this run added; of equal ones the oldest."""
        return None if self._best_new is None else self._best_new[1]

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search started."""
        return self._clock() - self._start_s

    def twin_of(self, code_hash: str, *, fits: bool = True) -> Evaluation | None:
        """The first evaluation of the study with this machine code; None if there is none.

        Args:
            code_hash: Hash of the machine code.
            fits: Whether the candidate passed the resource gate, which also depends on the limit on spills and on the
                compiler's messages; the hash does not.
        """
        return self._by_code.get((code_hash, fits)) if code_hash else None

    def crash_reason(self, code_hash: str) -> str:
        """Reason why this machine code must not run on this device again; empty if it may.

        Args:
            code_hash: Hash of the machine code.
        """
        row_id = self._crashes.get(code_hash)
        return "" if row_id is None else f"{KILLER} in an earlier search, row {row_id}: not run again"

    @property
    def evaluated(self) -> int:
        """Distinct candidates in the study, as of the last query or record."""
        return self._evaluated

    def evaluated_now(self) -> int:
        """Queries the number of distinct candidates in the study, including those of other processes."""
        self._evaluated = self._board.evaluated(self._study)
        return self._evaluated

    def record(self, evaluation: Evaluation, trial_number: int) -> int:
        """Stores an evaluation and returns its row id."""
        row_id = self._board.record(self._study, evaluation, trial_number)
        self._remember(evaluation)
        self._counts[evaluation.status] += 1
        for stage, seconds in evaluation.stage_seconds.items():
            self._stage_seconds[stage] = self._stage_seconds.get(stage, 0.0) + seconds
        self._measurements = self._measurements.with_one(evaluation)
        if evaluation.status is Status.DUPLICATE:
            self._duplicates += 1
        else:
            self._new += 1
            self._evaluated += 1
        timing = evaluation.timing
        if evaluation.ok and timing is not None:
            this = float(timing.median_us), row_id
            self._best_new = this if self._best_new is None else min(self._best_new, this)
            if self._best_us is None or timing.median_us < self._best_us:
                self._best_us, self._best_id, self._best_speedup = *this, timing.speedup
        return row_id

    def progress(self, in_flight: int) -> Progress:
        """Progress of the search; ``in_flight`` is the number of candidates in flight."""
        return Progress(
            evaluated=self._evaluated,
            budget=self._budget,
            in_flight=in_flight,
            new=self._new,
            duplicates=self._duplicates,
            counts={status: self._counts[status] for status in Status if self._counts[status]},
            elapsed_s=self.elapsed_s,
            best_us=self._best_us,
            best_id=self._best_id,
            best_speedup=self._best_speedup,
        )

    def _remember(self, evaluation: Evaluation) -> None:
        if evaluation.code_hash and evaluation.status is not Status.DUPLICATE:
            fits = evaluation.status is not Status.RESOURCE_LIMIT
            self._by_code.setdefault((evaluation.code_hash, fits), evaluation)


def _crashes(board: Leaderboard, study: Study) -> dict[str, int]:
    """Machine code that crashed its worker on this device in another study, with the row that recorded it.

    Machine code that did so in this study is found by its config, and by :meth:`StudyState.twin_of`.
    """
    scope = study.scope
    wanted = RowFilter(device_kind=scope.device_kind, device=scope.device, arch=scope.arch, statuses=(Status.CRASHED,))
    rows = (row for row in board.rows(wanted) if row.study_id != study.id and row.code_hash)
    return {row.code_hash: row.id for row in rows if row.reason.startswith(KILLER)}
