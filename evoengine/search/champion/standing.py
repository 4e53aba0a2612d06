"""Standing of a run's best row: whether it is the champion, and otherwise why not."""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.leaderboard.records import Challenge, Record, Row, Scope
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Duel
from evoengine.search.champion.refusal import refusal


@dataclass(frozen=True)
class Standing:
    """The fastest row of a run beside the champion of its scope."""

    best: Row | None
    """Fastest correct row of the run; None if the run added none."""
    difference: str
    """Reason why ``best`` is not the champion; empty if it is, or if there is no ``best``."""


def standing_of(board: Leaderboard, scope: Scope, best_id: int | None, threshold: float) -> Standing:
    """Compares a run's best row with the champion.

    Args:
        board: Leaderboard of both.
        scope: Ranking of both.
        best_id: Row of the run; None if it added no correct row.
        threshold: Minimum relative speed-up that the run required of a challenger.
    """
    record = None if best_id is None else next(board.records((best_id,)), None)
    if record is None:
        return Standing(None, "")
    return Standing(record.row, _difference(record, board.champion(scope), threshold))


def _difference(record: Record, champion: Row | None, threshold: float) -> str:
    row, refused = record.row, refusal(record)
    if champion is not None and champion.id == row.id:
        return ""
    if refused:
        return f"row {row.id} failed its inspection: {refused}"
    if row.pending:
        return f"row {row.id} becomes champion after its compute-sanitizer check"
    if champion is None or champion.median_us is None or row.median_us is None:
        return f"the challenge of row {row.id} was not finished: run the same command again"
    if champion.code_hash and champion.code_hash == row.code_hash:
        return f"row {row.id} is the same kernel as row {champion.id}, which was stored before it"
    gain = 1 - row.median_us / champion.median_us
    if gain == 0:
        return f"row {row.id} is as fast as row {champion.id}, which was stored before it"
    if gain < 0:
        return f"row {row.id} is {-gain:.1%} slower than row {champion.id} of {_origin(row, champion)}"
    lost = _last_lost(record.challenges, row.id)
    if lost is not None:
        return f"row {row.id} lost its duel: {_evidence(lost)}"
    if gain < threshold:
        return f"row {row.id} is {gain:.1%} faster than row {champion.id}, and --accept asks for {threshold:.1%}"
    return f"the challenge of row {row.id} was not finished: run the same command again"


def _origin(row: Row, champion: Row) -> str:
    return "another run of this search" if row.study_id == champion.study_id else f"study {champion.study_id}"


def _last_lost(challenges: tuple[Challenge, ...], row_id: int) -> Duel | None:
    """The newest duel that a row lost as the challenger."""
    lost = [one.duel for one in challenges if one.evaluation_id == row_id and one.duel and not one.duel.accepted]
    return lost[-1] if lost else None


def _evidence(duel: Duel) -> str:
    if len(duel.challenger_us) == 1:  # judged by stored times, since the champion could not run again
        least = f"at least {duel.low_gain:.1%} in the worst case of both intervals"
        return f"{duel.gain:.1%} faster by stored times, {least}; accepted are {duel.threshold:.1%} in that case"
    bound = f"with 95 % confidence at least {duel.low_gain:.1%}"
    return f"{duel.gain:.1%} faster, {bound}; accepted are {duel.threshold:.1%} with a bound above 0"
