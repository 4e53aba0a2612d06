"""Promotion of the leader to champion, after compute-sanitizer has checked it.

compute-sanitizer takes seconds to start, and while it runs the GPU can time nothing else. So no candidate waits for it:
the winner of a duel that passes the quick part of the inspection leads, and its row is stored as pending. Late in a
search the sanitizer is started for the leader; when the search has nothing else to do, it checks the newest pending
row. If it finds nothing, the row becomes champion; otherwise the row is refused, with the reason among its notes, and
the next newest is checked. Rows that a killed search left pending are checked by a later one on the scope.

A long search also checks once early: while the compilers work ahead, the GPU has time for it, and the leader at that
point often leads to the end. A failure to run that early check is ignored: the row is checked again at the end.
"""

from __future__ import annotations

from concurrent.futures import Future

from evoengine.errors import DefectError, MachineError
from evoengine.leaderboard.records import Row, Scope
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.candidate.jobs import Compile, JobService, Sanitize, StartSanitizer
from evoengine.search.candidate.results import Candidate, Compilation, Inspection
from evoengine.search.champion.refusal import store_inspection
from evoengine.search.events import ChallengeRejected, Observer, PromotionConfirmed


class SanitizerPromotion:
    """Checks pending rows, newest first, one at a time.

    Args:
        board: Leaderboard with the pending rows.
        scope: Ranking that they lead.
        compiler: Service that compiles rows of an earlier search again.
        examiner: Service that checks them, if it supports that.
        observer: Receiver of the outcomes.
    """

    def __init__(
        self, board: Leaderboard, scope: Scope, compiler: JobService, examiner: JobService, observer: Observer
    ) -> None:
        self._board = board
        self._scope = scope
        self._compiler = compiler
        self._examiner = examiner
        self._observer = observer
        self._candidates: dict[int, Candidate] = {}
        self._tried: set[int] = set()
        self._row: Row | None = None
        self._early = False
        self._stands_by = False
        self._rebuild: Future[Compilation] | None = None
        self._inspection: Future[Inspection] | None = None
        self.seconds = 0.0
        """Time for which a device was busy."""

    @property
    def required(self) -> bool:
        """Whether a winner becomes champion only after this check."""
        return self._examiner.supports(Sanitize)

    @property
    def future(self) -> Future[Compilation] | Future[Inspection] | None:
        """Job under way; call :meth:`step` when it is done."""
        return self._rebuild or self._inspection

    def remember(self, row_id: int, candidate: Candidate) -> None:
        """Keeps the kernels of a leading row."""
        self._candidates[row_id] = candidate

    def candidate_of(self, row_id: int) -> Candidate | None:
        """Returns the kernels of a row that led, if they were kept."""
        return self._candidates.get(row_id)

    def start_sanitizer(self) -> None:
        """Starts the sanitizer for the next check, unless it is started or running."""
        if self.required and not self._stands_by and self.future is None:
            self._stands_by = True
            self._examiner.submit(StartSanitizer())

    def begin(self, *, early: bool = False) -> bool:
        """Starts the check of the newest pending row, unless one is under way.

        Args:
            early: Whether the search still goes on.

        Returns:
            Whether a check is under way now.
        """
        if not self.required or self.future is not None:
            return self.future is not None
        self._row = next((row for row in self._board.pending(self._scope) if row.id not in self._tried), None)
        if self._row is None:
            return False
        self._tried.add(self._row.id)
        self._early = early
        self._stands_by = False
        candidate = self._candidates.get(self._row.id)
        if candidate is not None:
            self._inspection = self._examiner.submit(Sanitize(candidate))
        else:
            self._rebuild = self._compiler.submit(Compile(self._row.full_config))
        return True

    def step(self) -> bool:
        """Takes what is finished.

        Returns:
            Whether a row was accepted or refused.

        Raises:
            MachineError: A fault of this machine prevents the check.
        """
        if self._rebuild is not None and self._rebuild.done():
            self._take_rebuild(self._rebuild)
        return self._inspection is not None and self._inspection.done() and self._take_inspection(self._inspection)

    def cancel(self) -> None:
        """Cancels the check under way unless a worker has begun it; this search makes it at its end, or a later one."""
        if self.future is not None and self.future.cancel():
            self._rebuild = self._inspection = None
            if self._row is not None:
                self._tried.discard(self._row.id)

    def _take_rebuild(self, done: Future[Compilation]) -> None:
        self._rebuild = None
        row = self._row
        if row is None:
            return
        try:
            candidate = done.result().candidate
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            self._leave(row, f"it could not be built again: {error}")
            return
        if candidate is None or candidate.code_hash != row.code_hash:
            self._leave(row, "it cannot be built again to the same machine code here")
            return
        self._candidates[row.id] = candidate
        self._inspection = self._examiner.submit(Sanitize(candidate))

    def _take_inspection(self, done: Future[Inspection]) -> bool:
        self._inspection = None
        row = self._row
        if row is None:
            return False
        try:
            inspection = done.result()
        except Exception as error:
            if isinstance(error, DefectError) or (isinstance(error, MachineError) and not self._early):
                raise
            self._leave(row, str(error))  # a worker may die of anything
            return False
        self.seconds += inspection.seconds
        store_inspection(self._board, row.id, inspection)
        self._board.settle(self._scope, row.id, accepted=not inspection.finding)
        if inspection.finding:
            self._observer.notify(ChallengeRejected(row.id, None, inspection.finding))
        else:
            self._observer.notify(PromotionConfirmed(row.id, inspection.notes))
        return True

    def _leave(self, row: Row, why: str) -> None:
        """Leaves a row pending; if this check was early, the row is checked again at the end."""
        if self._early:
            self._tried.discard(row.id)
            return
        reason = f"its inspection was not completed, so it still waits to be champion: {why}"
        self._observer.notify(ChallengeRejected(row.id, None, reason))
