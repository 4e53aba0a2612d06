"""Overdue challenges: stored predictions that are faster than the champion but never challenged it.

A search that was stopped drops the challenges that wait, and an earlier one may have had a higher threshold. Such a row
is compiled again, for its inspection, and then challenges as a new one does. Measured rows are left alone, except for
the election of a first champion: their stored times vary, and a lost duel is not repeated.
"""

from __future__ import annotations

from collections.abc import Container
from concurrent.futures import Future
from typing import Final

from evoengine.leaderboard.records import Row, RowFilter, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.candidate.jobs import Compile, JobService
from evoengine.search.candidate.results import Compilation
from evoengine.search.champion.challenger import Challenger, is_fast_enough
from evoengine.search.champion.refusal import is_refused

_CONSIDERED: Final = 8
"""Number of the study's fastest rows that may have an overdue challenge."""


def overdue_rows(board: Leaderboard, study: Study, threshold: float, *, electing: bool = False) -> list[Row]:
    """Returns the rows of a study whose challenge is overdue, fastest first.

    Args:
        board: Leaderboard of the study.
        study: Study of the rows.
        threshold: Minimum relative speed-up needed to replace the champion.
        electing: Whether measured rows may become the first champion; otherwise none of them is overdue.
    """
    scope = study.scope
    leader = board.leader(scope)
    if not scope.predicted and not (electing and leader is None):
        return []
    leader_us = None if leader is None else leader.median_us
    fastest = board.rows(RowFilter(study_id=study.id, limit=_CONSIDERED))
    return [
        row
        for row in fastest
        if row.median_us is not None
        and is_fast_enough(row.median_us, leader_us, threshold)
        and not any(map(is_refused, board.records((row.id,))))
    ]


class OverdueChallenges:
    """Makes the overdue challenges of a study, one at a time.

    Args:
        board: Leaderboard of the study.
        study: Study of the rows.
        threshold: Minimum relative speed-up needed to replace the champion.
        compiler: Service that compiles the rows again.
    """

    def __init__(self, board: Leaderboard, study: Study, threshold: float, compiler: JobService) -> None:
        self._board = board
        self._study = study
        self._threshold = threshold
        self._compiler = compiler
        self._tried: set[int] = set()
        self._row: Row | None = None
        self.future: Future[Compilation] | None = None
        """Job under way; call :meth:`step` when it is done."""

    def begin(self, candidates: Container[int] | None = None) -> bool:
        """Starts the compilation of the next row, unless one is under way.

        Args:
            candidates: In an election of the first champion, the rows that may be elected as they are: neither they
                nor slower ones are overdue.

        Returns:
            Whether something is under way now.
        """
        if self.future is not None or not self._compiler.supports(Compile):
            return self.future is not None
        rows = overdue_rows(self._board, self._study, self._threshold, electing=candidates is not None)
        row = next((row for row in rows if row.id not in self._tried), None)
        if row is None or (candidates is not None and row.id in candidates):
            return False
        self._row = row
        self._tried.add(row.id)
        self.future = self._compiler.submit(Compile(row.full_config))
        return True

    def step(self) -> Challenger | None:
        """Returns the challenger that is ready, if any; a row that cannot be built again has no challenge."""
        row, done = self._row, self.future
        if row is None or done is None or not done.done():
            return None
        self.future = self._row = None
        if done.cancelled() or done.exception() is not None:
            return None
        candidate = done.result().candidate
        timing = self._board.get(row.id).evaluation.timing
        if candidate is None or candidate.code_hash != row.code_hash or timing is None:
            return None
        return Challenger(row.id, timing, candidate)

    def cancel(self) -> None:
        """Drops what is under way; a later search makes the challenge."""
        if self.future is not None:
            self.future.cancel()
        self.future = self._row = None
