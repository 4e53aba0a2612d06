"""Notes of a row: stored with it, added later, shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evoengine.cli.verbs.leaderboard import record_document
from evoengine.leaderboard.store import Leaderboard
from tests.leaderboard.test_leaderboard import evaluation, key


def test_notes_are_stored_added_and_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'board.db'}"
    with Leaderboard(url) as board:
        study = board.open_study(key())
        plain = board.record(study, evaluation(1, 5.0))
        noted = board.record(study, replace(evaluation(2, 4.0), notes=("bit for bit SDPA's",)))
        for note in ("refused as champion: a race", "refused as champion: a race"):
            board.add_note(plain, note)
            board.add_note(noted, note)
    with Leaderboard(url, create=False) as board:
        notes = [entry.evaluation.notes for entry in board.evaluations(board.open_study(key()))]
        assert notes == [("refused as champion: a race",), ("bit for bit SDPA's", "refused as champion: a race")]
        assert record_document(board.get(noted))["notes"] == list(notes[1])
