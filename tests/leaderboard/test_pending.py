"""Pending rows, which lead but wait for the end of their inspection: store and output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Duel
from evoengine.search.settings import SearchSettings
from tests.cli.calling import environment
from tests.search.landscape import build_space
from tests.search.sanitizing import SanitizingExaminer, run_on, study_of
from tests.warm import WarmPython

ROOT = Path(__file__).parents[2]
WON = Duel((1.0,) * 9, (2.0,) * 9, 0.5, 0.5, 0.03, True)
LOST = Duel((2.0,) * 9, (2.0,) * 9, 0.0, -0.1, 0.03, False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns a file with four rows and no champion."""
    path, space = tmp_path / "board.db", build_space(tmp_path)
    with Leaderboard(f"sqlite:///{path}") as board:
        settings = SearchSettings(budget=4)
        run_on(board, space, [100.0, 80.0, 60.0, 40.0], SanitizingExaminer(guilty=frozenset({1, 2, 3, 4})), settings)
        assert board.champion(study_of(board, space).scope) is None
    return path


@pytest.fixture
def board(file: Path) -> Iterator[Leaderboard]:
    with Leaderboard(f"sqlite:///{file}", create=False) as opened:
        yield opened


def state(board: Leaderboard) -> tuple[int | None, int | None, list[int]]:
    """Returns champion, leader and pending rows."""
    scope = board.studies()[0].scope
    champion, leader = board.champion(scope), board.leader(scope)
    flagged = [row.id for row in board.rows() if row.pending]
    waiting = [row.id for row in board.pending(scope)]
    assert sorted(flagged) == sorted(waiting)
    return (None if champion is None else champion.id), (None if leader is None else leader.id), waiting


def test_the_leader_becomes_champion_when_its_inspection_passes(board: Leaderboard) -> None:
    scope = board.studies()[0].scope
    assert board.record_challenge(scope, 1, None, None, pending=True)
    assert state(board) == (None, 1, [1])
    assert not board.record_challenge(scope, 2, None, None, pending=True), "row 1 leads"
    assert board.record_challenge(scope, 2, 1, WON, pending=True)
    assert board.record_challenge(scope, 3, 2, WON, pending=True)
    assert not board.record_challenge(scope, 4, 3, LOST, pending=True)
    assert state(board) == (None, 3, [3, 2, 1])
    board.settle(scope, 3, accepted=False)
    assert state(board) == (None, 2, [2, 1])
    board.settle(scope, 2, accepted=True)
    assert state(board) == (2, 2, [])
    history = [(entry.evaluation_id, entry.accepted, entry.pending) for entry in board.challenges(scope)][-4:]
    assert history == [(1, True, True), (2, True, False), (3, False, False), (4, False, False)]


def test_an_older_row_does_not_replace_a_newer_champion(board: Leaderboard) -> None:
    """Two searches may inspect at the same time."""
    scope = board.studies()[0].scope
    board.record_challenge(scope, 1, None, None, pending=True)
    board.record_challenge(scope, 2, 1, WON, pending=True)
    board.settle(scope, 2, accepted=True)
    board.settle(scope, 1, accepted=True)
    assert state(board) == (2, 2, [])
    assert board.record_challenge(scope, 3, 2, WON)
    board.settle(scope, 3, accepted=False)
    assert state(board) == (3, 3, []), "it was not pending"


def say(warm: WarmPython, cache: Path, *words: str) -> str:
    """Returns the output of a verb."""
    done = warm.run("evoengine", words, ROOT, environment(cache))
    assert done.code == 0, done.err
    return done.out


def test_pending_rows_are_marked_in_the_output(
    board: Leaderboard, file: Path, warm: WarmPython, shared_cache: Path
) -> None:
    scope = board.studies()[0].scope
    board.record_challenge(scope, 1, None, None)
    board.record_challenge(scope, 2, 1, WON, pending=True)
    listed = say(warm, shared_cache, "leaderboard", "--db", str(file))
    assert "3+" in listed
    assert "4*" in listed
    assert "compute-sanitizer" in listed
    shown = say(warm, shared_cache, "leaderboard", "show", "2", "--db", str(file))
    assert re.search("3, .*compute-sanitizer", shown)
    assert re.search("row 2 .*row 1, .*inspection", " ".join(shown.split()))
    document = json.loads(say(warm, shared_cache, "leaderboard", "show", "2", "--json", "--db", str(file)))
    assert document["challenges"][-1]["pending"] is True
    refused = " ".join(say(warm, shared_cache, "leaderboard", "show", "4", "--db", str(file)).split())
    assert "but failed its inspection" in refused
    rows = {row["id"]: row for row in json.loads(say(warm, shared_cache, "leaderboard", "--json", "--db", str(file)))}
    assert [row_id for row_id, row in rows.items() if row["pending"]] == [2]
    board.settle(scope, 2, accepted=True)
    assert "waits for compute-sanitizer" not in say(warm, shared_cache, "leaderboard", "--db", str(file))
