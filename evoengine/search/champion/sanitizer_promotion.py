"""The end of the inspection: who leads becomes champion once compute-sanitizer has looked at it, too.

Starting it takes seconds, looking takes a while in which the GPU can time nothing else. So nobody waits for it while
candidates come: whoever wins its duel and passes the quick part of the inspection leads, and is stored as pending. Late
in a search it is started for whoever leads; when the search has nothing else to do the newest pending row is looked at.
If nothing is found it is champion; otherwise it is refused, with the reason among its notes, and the one before it is
next. What a killed search left pending a later one on the scope looks at.

A long search looks early, too, once: while compilers work ahead, the GPU has time for it, and who leads then often
leads to the end. What comes in the way of an early look is no fault of anybody: the end sees to that row again.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from evoengine.errors import DefectError, MachineError
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.records import Row, Scope
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.candidate.evaluate import Compilation
from evoengine.search.candidate.inspection import Inspection
from evoengine.search.candidate.services import CompileService, ExamineService
from evoengine.search.events import ChallengeRejected, Observer, PromotionConfirmed

REFUSED: Final = "refused as champion: "
"""Begins the note of a row that an inspection did not pass."""


class SanitizerPromotion:
    """Looks at pending rows, newest first, one at a time.

    Args:
        board: where they are.
        scope: in which they lead.
        compiler: builds those again that an earlier search left.
        examiner: looks at them, if it can.
        observer: hears of the outcome.
    """

    def __init__(
        self, board: Leaderboard, scope: Scope, compiler: CompileService, examiner: ExamineService, observer: Observer
    ) -> None:
        self._board = board
        self._scope = scope
        self._compiler = compiler
        self._examiner = examiner
        self._observer = observer
        self._kernels: dict[int, Kernel] = {}
        self._tried: set[int] = set()
        self._row: Row | None = None
        self._early = False
        self._stands_by = False
        self._rebuild: Future[Compilation] | None = None
        self._inspection: Future[Inspection] | None = None
        self.seconds = 0.0
        """For which a device was taken."""

    @property
    def wanted(self) -> bool:
        """Whether a winner has to wait for it."""
        return self._examiner.sanitizes

    @property
    def future(self) -> Future[Compilation] | Future[Inspection] | None:
        """What it waits for, to be passed to :meth:`step` when done."""
        return self._rebuild or self._inspection

    def remember(self, row_id: int, kernel: Kernel) -> None:
        """Keeps the kernel of a row that leads."""
        self._kernels[row_id] = kernel

    def kernel_of(self, row_id: int) -> Kernel | None:
        """The kernel of a row that led, where it is at hand."""
        return self._kernels.get(row_id)

    def stand_by(self) -> None:
        """Has the device get ready for the next look, where it neither is nor looks."""
        if self.wanted and not self._stands_by and self.future is None:
            self._stands_by = True
            self._examiner.stand_by()

    def begin(self, *, early: bool = False) -> bool:
        """Starts on the newest row that waits, if nothing is under way; says whether something is now.

        Args:
            early: whether the search still goes on.
        """
        if not self.wanted or self.future is not None:
            return self.future is not None
        self._row = next((row for row in self._board.pending(self._scope) if row.id not in self._tried), None)
        if self._row is None:
            return False
        self._tried.add(self._row.id)
        self._early = early
        self._stands_by = False
        kernel = self._kernels.get(self._row.id)
        if kernel is not None:
            self._inspection = self._examiner.sanitize(kernel)
        else:
            self._rebuild = self._compiler.submit(Config.of(self._row.family, self._row.config))
        return True

    def step(self) -> bool:
        """Goes on: takes what is finished.

        Returns:
            Whether a row was accepted or refused now.

        Raises:
            MachineError: something of this machine is in the way.
        """
        if self._rebuild is not None and self._rebuild.done():
            self._take_rebuild(self._rebuild)
        return self._inspection is not None and self._inspection.done() and self._take_inspection(self._inspection)

    def cancel(self) -> None:
        """Leaves what is under way to the end of this search, or to a later one."""
        if self.future is not None:
            self.future.cancel()
            self._put_off()
        self._rebuild = self._inspection = None

    def _take_rebuild(self, done: Future[Compilation]) -> None:
        self._rebuild = None
        row = self._row
        if row is None:
            return
        try:
            kernel = done.result().kernel
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            self._leave(row, f"it could not be built again: {error}")
            return
        if kernel is None or kernel.binary.code_hash != row.code_hash:
            self._leave(row, "it cannot be built again to the same machine code here")
            return
        self._kernels[row.id] = kernel
        self._inspection = self._examiner.sanitize(kernel)

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
        for note in inspection.notes:
            self._board.add_note(row.id, note)
        if inspection.finding:
            self._board.add_note(row.id, f"{REFUSED}{inspection.finding}")
        self._board.settle(self._scope, row.id, accepted=not inspection.finding)
        if inspection.finding:
            self._observer.notify(ChallengeRejected(row.id, None, inspection.finding))
        else:
            self._observer.notify(PromotionConfirmed(row.id, inspection.notes))
        return True

    def _put_off(self) -> bool:
        """Forgets an early look, so that there is another one at the end."""
        if self._early and self._row is not None:
            self._tried.discard(self._row.id)
        return self._early

    def _leave(self, row: Row, why: str) -> None:
        if self._put_off():
            return
        reason = f"its inspection was not completed, so it still waits to be champion: {why}"
        self._observer.notify(ChallengeRejected(row.id, None, reason))
