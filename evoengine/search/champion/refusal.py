"""Refused rows: correct and timed, but an inspection found a fault, so they never become champion."""

from __future__ import annotations

from typing import Final

from evoengine.leaderboard.records import Record
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.candidate.results import Inspection

REFUSED: Final = "refused as champion: "
"""Prefix of the note of a row that failed an inspection."""


def store_inspection(board: Leaderboard, row_id: int, inspection: Inspection) -> None:
    """Adds the outcome of an inspection to the notes of a row; a finding refuses the row."""
    for note in inspection.notes:
        board.add_note(row_id, note)
    if inspection.finding:
        board.add_note(row_id, f"{REFUSED}{inspection.finding}")


def refusal(record: Record) -> str:
    """Returns what an inspection found in a row's kernel; empty if nothing."""
    return next((note.removeprefix(REFUSED) for note in record.evaluation.notes if note.startswith(REFUSED)), "")


def is_refused(record: Record) -> bool:
    """Returns whether an inspection refused a row."""
    return bool(refusal(record))
