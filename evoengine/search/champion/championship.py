"""The champion rule: who may challenge, one duel at a time, and the crown only with evidence and after inspection."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from evoengine.bench.acceptance import judge_predictions
from evoengine.errors import DefectError, MachineError
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.records import Row, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Duel, Timing
from evoengine.search.candidate.evaluate import Compilation
from evoengine.search.candidate.inspection import Inspection
from evoengine.search.candidate.services import CompileService, ExamineService
from evoengine.search.champion.sanitizer_promotion import REFUSED, SanitizerPromotion
from evoengine.search.events import ChallengeRejected, ChampionAccepted, Observer

_REMEMBERED: Final = 8
"""Challengers that get another chance when a leader is refused: the fastest."""
_ROUNDING: Final = 1e-9
"""A gain of exactly the threshold must not fail for a rounding error."""


@dataclass(frozen=True)
class Challenger:
    """A stored correct row with the kernel that made it."""

    row_id: int
    timing: Timing
    kernel: Kernel

    @property
    def median_us(self) -> float:
        """Its time."""
        return self.timing.median_us


class Championship:
    """Holds the champion of a scope and runs challenges, one at a time, fastest challenger first.

    Measured challengers meet the champion in a duel on the device, for which the champion of an earlier run is compiled
    anew; a prediction says the same every time, so two predictions are compared as they are. A champion that cannot be
    made again to the same machine code (another template, another NVRTC) cannot be met either: it falls only if the
    stored confidence intervals alone prove the gain, and the evidence then holds one pair.

    Whoever has proven its gain is inspected before it is crowned, the first champion of a scope too; there is no other
    way to the crown. What the inspection found is stored with the row. Where the slow part of the inspection is wanted
    (see :mod:`evoengine.search.champion.sanitizer_promotion`), the winner leads from now on, but is champion only after that part:
    :meth:`conclude` sees to it when all challenges are over, :meth:`look_early` before that. If it finds something, the
    leader before is met again by those who were too slow for the refused one, or were just meeting it.
    """

    def __init__(
        self,
        board: Leaderboard,
        study: Study,
        threshold: float,
        compiler: CompileService,
        examiner: ExamineService,
        observer: Observer,
    ) -> None:
        self._board = board
        self._study = study
        self._threshold = threshold
        self._compiler = compiler
        self._examiner = examiner
        self._observer = observer
        self._confirmation = SanitizerPromotion(board, study.scope, compiler, examiner, observer)
        self._champion: Row | None = board.leader(study.scope)
        self._champion_kernel: Kernel | None = None
        self._waiting: list[Challenger] = []
        self._challenger: Challenger | None = None
        self._rebuild: Future[Compilation] | None = None
        self._duel: Future[Duel] | None = None
        self._evidence: Duel | None = None
        self._inspection: Future[Inspection] | None = None
        self._overshadowed: list[Challenger] = []
        self._inspect_s = 0.0
        self._looked_early = False

    @property
    def median_us(self) -> float | None:
        """The time of whom a challenger has to beat: the champion, or who is to be."""
        return None if self._champion is None else self._champion.median_us

    @property
    def futures(self) -> list[Future[Any]]:
        """What it waits for; :meth:`step` takes what is done."""
        each = (self._duel, self._rebuild, self._inspection, self._confirmation.future)
        return [future for future in each if future is not None]

    @property
    def idle(self) -> bool:
        """Whether there is no challenge or inspection under way or waiting."""
        return self._challenger is None and not self._waiting and self._confirmation.future is None

    @property
    def inspect_seconds(self) -> float:
        """For which a device was taken by inspections."""
        return self._inspect_s + self._confirmation.seconds

    def may_challenge(self, median_us: float) -> bool:
        """Whether a time is better than the champion's by the threshold."""
        best = self.median_us
        return best is None or median_us <= best * (1 - self._threshold) * (1 + _ROUNDING)

    def enter(self, challenger: Challenger) -> None:
        """A correct candidate was stored; it challenges if it may."""
        if self.may_challenge(challenger.median_us):
            self._waiting.append(challenger)
            self.step()
        else:
            self._pass_over(challenger)

    def stand_by(self) -> None:
        """Has the device get ready for the end of the inspection of who leads, if that is to come."""
        if self._champion is not None and self._champion.pending:
            self._confirmation.stand_by()

    def look_early(self) -> None:
        """Most challengers have come: completes the inspection of who leads, once, while the others go on."""
        if self.idle and not self._looked_early:
            self._looked_early = True
            self._confirmation.begin(early=True)

    def conclude(self) -> bool:
        """No challenger will come any more: completes the inspection of who leads.

        Returns:
            Whether something is under way; call it again until nothing is.
        """
        return not self.idle or self._confirmation.begin()

    def cancel(self) -> None:
        """Forgets challenges that wait or cannot be finished; their rows stay and are ranked, and who leads leads."""
        self._waiting.clear()
        self._break_off()
        self._confirmation.cancel()

    def step(self) -> None:
        """Goes on: takes what is finished, starts what is next.

        Raises:
            DefectError: the gate passed a kernel that does nothing.
        """
        if self._rebuild is not None and self._rebuild.done():
            self._take_rebuild(self._rebuild)
        if self._duel is not None and self._duel.done():
            self._take_duel(self._duel)
        if self._inspection is not None and self._inspection.done():
            self._take_inspection(self._inspection)
        if self._confirmation.step():
            self._look_who_leads()
        while self._challenger is None and self._waiting:
            self._waiting.sort(key=_time_of, reverse=True)
            challenger = self._waiting.pop()
            if self.may_challenge(challenger.median_us):
                self._begin(challenger)
            else:
                self._pass_over(challenger)

    def _pass_over(self, challenger: Challenger) -> None:
        """Remembers some of those that are too slow for a leader who may yet be refused."""
        if self._champion is not None and self._champion.pending:
            self._overshadowed = sorted((*self._overshadowed, challenger), key=_time_of)[:_REMEMBERED]

    def _look_who_leads(self) -> None:
        """An inspection is complete. If the leader was refused, who led before does so again, and has to prove it."""
        leader = self._board.leader(self._study.scope)
        refused = (leader and leader.id) != (self._champion and self._champion.id)
        self._champion = leader
        if not refused:
            return
        if self._challenger is not None:  # what it meets, or has beaten, is not the leader any more
            self._waiting.append(self._challenger)
            self._break_off()
        self._champion_kernel = None if leader is None else self._confirmation.kernel_of(leader.id)
        self._waiting, self._overshadowed = [*self._waiting, *self._overshadowed], []

    def _break_off(self) -> None:
        """Forgets the challenge that is under way."""
        for future in (self._duel, self._rebuild, self._inspection):
            if future is not None:
                future.cancel()
        self._rebuild = self._duel = self._inspection = self._challenger = None

    def _begin(self, challenger: Challenger) -> None:
        champion = self._champion
        if champion is None or champion.median_us is None:
            self._judge(challenger, None)
        elif champion.predicted:
            self._judge(challenger, judge_predictions(challenger.median_us, champion.median_us, self._threshold))
        elif self._champion_kernel is not None:
            self._challenger = challenger
            self._duel = self._examiner.challenge(challenger.kernel, self._champion_kernel)
        else:
            self._challenger = challenger
            self._rebuild = self._compiler.submit(Config.of(champion.family, champion.config))

    def _take_rebuild(self, done: Future[Compilation]) -> None:
        self._rebuild = None
        challenger, champion = self._challenger, self._champion
        if challenger is None or champion is None:
            return
        try:
            compilation = done.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            self._give_up(challenger, f"the champion, row {champion.id}, could not be built again: {error}")
            return
        kernel = compilation.kernel
        if kernel is None or kernel.binary.code_hash != champion.code_hash:
            self._challenger = None
            self._judge(challenger, duel_by_record(challenger.timing, champion, self._threshold))
        else:
            self._champion_kernel = kernel
            self._confirmation.remember(champion.id, kernel)
            self._duel = self._examiner.challenge(challenger.kernel, kernel)

    def _take_duel(self, done: Future[Duel]) -> None:
        self._duel = None
        challenger = self._challenger
        if challenger is None:
            return
        try:
            duel = done.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            self._give_up(challenger, f"the duel was not finished: {error}")
            return
        self._challenger = None
        self._judge(challenger, duel)

    def _judge(self, challenger: Challenger, duel: Duel | None) -> None:
        """Has a challenger inspected that has won, or for which there is nobody to meet."""
        if duel is not None and not duel.accepted:
            self._settle(challenger, duel)
            return
        self._challenger, self._evidence = challenger, duel
        self._inspection = self._examiner.inspect(challenger.kernel)

    def _take_inspection(self, done: Future[Inspection]) -> None:
        self._inspection = None
        challenger, duel = self._challenger, self._evidence
        if challenger is None:
            return
        try:
            inspection = done.result()
        except (DefectError, MachineError):
            raise
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            self._give_up(challenger, f"it was not inspected: {error}")
            return
        self._inspect_s += inspection.seconds
        for note in inspection.notes:
            self._board.add_note(challenger.row_id, note)
        if inspection.finding:
            self._board.add_note(challenger.row_id, f"{REFUSED}{inspection.finding}")
            self._challenger = None
            self._observer.notify(ChallengeRejected(challenger.row_id, duel, inspection.finding))
            return
        self._challenger = None
        self._settle(challenger, duel)

    def _give_up(self, challenger: Challenger, reason: str) -> None:
        self._challenger = None
        self._observer.notify(ChallengeRejected(challenger.row_id, None, reason))

    def _settle(self, challenger: Challenger, duel: Duel | None) -> None:
        scope, pending = self._study.scope, self._confirmation.wanted
        known = None if self._champion is None else self._champion.id
        if self._board.crown(scope, challenger.row_id, known, duel, pending=pending):
            self._champion = self._board.leader(scope)
            self._champion_kernel = challenger.kernel
            if pending:
                self._confirmation.remember(challenger.row_id, challenger.kernel)
            self._observer.notify(ChampionAccepted(challenger.row_id, challenger.median_us, duel, pending))
            return
        now = self._board.leader(scope)
        if now is not None and now.id != known:  # another search crowned someone else: the challenge starts over
            self._champion, self._champion_kernel = now, None
            self._waiting.append(challenger)
        else:
            self._pass_over(challenger)
            self._observer.notify(ChallengeRejected(challenger.row_id, duel, ""))


def _time_of(challenger: Challenger) -> float:
    return challenger.median_us


def duel_by_record(challenger: Timing, champion: Row, threshold: float) -> Duel:
    """Judges by stored times, where the champion cannot run again.

    They are no interleaved pairs, so more is asked: even the worst case of both confidence intervals must be a gain of
    the threshold.
    """
    champion_us = champion.median_us or challenger.median_us
    champion_low_us = champion.low_us or champion_us
    gain = 1 - challenger.median_us / champion_us
    low_gain = 1 - challenger.high_us / champion_low_us
    return Duel((challenger.median_us,), (champion_us,), gain, low_gain, threshold, low_gain >= threshold)
