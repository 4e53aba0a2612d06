"""Verification of predictions: the choice of rows, the matching of evaluations, and the accuracy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.landscape.file import read_landscape
from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Evaluation, Status
from evoengine.search.prediction_check import (
    match_evaluations,
    predicted_elites,
    prediction_accuracy,
    restrict_to,
)
from evoengine.space.family_spaces import FamilySpaces
from tests.landscape.making import RECORDED

LANDSCAPE = read_landscape(RECORDED)
assert LANDSCAPE.problem is not None
PROBLEM = LANDSCAPE.problem
FIVE = tuple(sorted(LANDSCAPE.evaluations, key=lambda one: (one.value_us or 0, str(one.config)))[:5])


def store(board: Leaderboard, evaluations: tuple[Evaluation, ...], name: str, method: str = "model-v2") -> None:
    device = DeviceInfo("emulator", name, "sm_89", predicted=True)
    study = board.open_study(StudyKey(PROBLEM, "mma", device, method, "random", 0))
    for number, one in enumerate(evaluations):
        assert one.timing is not None
        board.record(study, replace(one, timing=replace(one.timing, method=method)), number)


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    return Leaderboard(f"sqlite:///{tmp_path / 'lb.db'}")


def test_the_ranking_with_the_newest_prediction_is_used(board: Leaderboard) -> None:
    with board:
        store(board, FIVE, "NVIDIA L4", "model-v1")
        store(board, FIVE[2:], "NVIDIA A100")
        store(board, FIVE[:3], "NVIDIA L4")
        assert [row.full_config for row in predicted_elites(board, PROBLEM.key)] == [e.config for e in FIVE[:3]]
        assert len(predicted_elites(board, PROBLEM.key, "NVIDIA A100")) == 3
        assert predicted_elites(board, "1x1x1x16-fp16") == []
        assert predicted_elites(board, PROBLEM.key, "NVIDIA H200") == []


def test_each_machine_code_appears_once(board: Leaderboard) -> None:
    same = tuple(replace(one, code_hash="c1") for one in FIVE[:2])
    with board:
        store(board, (*same, FIVE[2]), "NVIDIA L4")
        assert len(predicted_elites(board, PROBLEM.key)) == 2


def test_a_space_restricted_to_some_configs() -> None:
    spaces, wanted = LANDSCAPE.spaces, [one.config for one in FIVE]
    few = restrict_to(spaces, [*wanted, wanted[0]])
    assert few is not None
    assert set(few) == set(wanted)
    assert few.size == 5
    assert not few.contains(LANDSCAPE.evaluations[-1].config) or LANDSCAPE.evaluations[-1].config in wanted
    assert restrict_to(spaces, [Config.of("mma", {"WARPS_M": 3})]) is None
    assert restrict_to(FamilySpaces(()), wanted) is None


def test_predictions_are_matched_with_evaluations(board: Leaderboard) -> None:
    measured = {0: 10.0, 1: 8.0, 2: 12.0}
    with board:
        store(board, FIVE, "NVIDIA L4")
        rows = predicted_elites(board, PROBLEM.key)
    outcomes = []
    for place, us in measured.items():
        timing = FIVE[place].timing
        assert timing is not None
        outcomes.append(replace(FIVE[place], timing=replace(timing, median_us=us)))
    outcomes.append(replace(FIVE[3], timing=None, status=Status.DUPLICATE, duplicate_of=FIVE[1].config.key))
    entries = match_evaluations(rows, outcomes)
    assert [entry.measured_us for entry in entries] == [10.0, 8.0, 12.0, 8.0, None], "duplicates repeat a time"
    assert entries[4].evaluation is None
    held = prediction_accuracy(entries)
    assert held.compared == 4
    assert held.best is entries[1]
    assert held.first is entries[0]
    predicted = [row.median_us or 0 for row in rows[:4]]
    assert held.median_ratio == pytest.approx(
        np.median([m / p for m, p in zip([10, 8, 12, 8], predicted, strict=True)])
    )
    assert prediction_accuracy(entries[4:]).compared == 0
    assert prediction_accuracy(entries[:2]).spearman is None, "two points have no rank correlation"
