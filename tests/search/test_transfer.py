"""Transfer of configs from earlier studies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, DType, Evaluation, Problem, Status, Timing
from evoengine.search.settings import SearchSettings
from evoengine.search.warmstart.transfer import (
    MAX_DISTANCE,
    MAX_TRANSFERRED,
    PER_SEARCH,
    device_distance,
    problem_distance,
    transferred,
)
from evoengine.space.family_spaces import FamilySpaces
from tests.search.landscape import build_space
from tests.search.synthetic import PROBLEM, study_key

LONGER = replace(PROBLEM, seq_q=1024, seq_kv=1024)


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> FamilySpaces:
    return FamilySpaces((build_space(tmp_path_factory.mktemp("space")),))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> FamilySpaces:
    """The same family with only small tiles valid."""
    return FamilySpaces((build_space(tmp_path_factory.mktemp("narrow"), {"TILE_N": (32, 48)}),))


def study(board: Leaderboard, spaces: FamilySpaces, problem: Problem, seed: int = 0, gpu: str = "") -> Study:
    key = study_key(SearchSettings(budget=1, seed=seed), spaces.members[0])
    device = replace(key.device, name=gpu) if gpu else key.device
    return board.open_study(replace(key, problem=problem, device=device))


def record(board: Leaderboard, where: Study, config: Config, us: float, code: str = "") -> int:
    timing = Timing(us, us, us, predicted=False, method="graph-warm", samples_us=(us,))
    return board.record(where, Evaluation(config, Status.OK, code_hash=code or config.key, timing=timing))


@pytest.mark.parametrize(
    ("other", "steps"),
    [
        (PROBLEM, 0.0),
        (LONGER, 2.0),
        (replace(PROBLEM, batch=4), 2.0),
        (replace(PROBLEM, causal=True), 1.0),
        (replace(PROBLEM, kv_heads=2), 2.0),
        (replace(PROBLEM, sink=True, softcap=30.0), 1.0),
        (replace(PROBLEM, dtype=DType.BF16), None),
        (replace(PROBLEM, head_dim=128), None),
    ],
)
def test_problem_distance_counts_doublings_and_masks(other: Problem, steps: float | None) -> None:
    assert problem_distance(PROBLEM, other) == steps
    assert problem_distance(other, PROBLEM) == steps


def test_device_distance_counts_name_architecture_and_prediction() -> None:
    here = DeviceInfo("cuda", "A", "sm_89", predicted=False)
    assert device_distance(here, replace(here, driver="13.1")) == 0
    assert device_distance(here, replace(here, name="B")) == 1
    assert device_distance(here, DeviceInfo("cuda", "C", "sm_90a", predicted=False)) == 2
    assert device_distance(here, DeviceInfo("emulator", "A", "sm_89", predicted=True)) == 3


def test_the_best_rows_of_the_nearest_studies_come_first(board: Leaderboard, spaces: FamilySpaces) -> None:
    space = spaces.members[0]
    far = study(board, spaces, replace(PROBLEM, batch=8, causal=True))
    near = study(board, spaces, LONGER)
    other_gpu = study(board, spaces, PROBLEM, gpu="another")
    alien = study(board, spaces, replace(PROBLEM, dtype=DType.BF16))
    rows = {}
    for place, where in enumerate((far, near, other_gpu, alien)):
        for rank in range(4):
            config = space.config(100 * place + 10 * rank)
            rows[where.id, rank] = record(board, where, config, 5.0 + rank)
    here = study(board, spaces, PROBLEM)
    found = transferred(board, here, spaces)
    assert [entry.row.id for entry in found] == [
        rows[where.id, rank] for where in (other_gpu, near, far) for rank in range(PER_SEARCH)
    ]
    assert [entry.distance for entry in found] == [1, 1, 2, 2, 4, 4]
    assert len(found) <= MAX_TRANSFERRED
    assert not any(entry.repaired for entry in found)


def test_an_invalid_config_is_repaired_to_the_nearest_valid_one(
    board: Leaderboard, spaces: FamilySpaces, narrow: FamilySpaces
) -> None:
    wide = next(config for config in spaces if config["TILE_N"] == 64)
    record(board, study(board, spaces, LONGER), wide, 5.0)
    (entry,) = transferred(board, study(board, narrow, PROBLEM), narrow)
    assert entry.repaired
    assert entry.config in narrow
    assert entry.config == Config.of(wide.family, wide.as_dict() | {"TILE_N": 48})


def test_equal_kernels_and_equal_configs_are_transferred_once(board: Leaderboard, spaces: FamilySpaces) -> None:
    space = spaces.members[0]
    near, other = study(board, spaces, LONGER), study(board, spaces, PROBLEM, gpu="another")
    record(board, near, space.config(1), 5.0, "same")
    record(board, near, space.config(2), 5.5, "same")
    record(board, other, space.config(1), 7.0)
    found = transferred(board, study(board, spaces, PROBLEM), spaces)
    assert [entry.config for entry in found] == [space.config(1)]


def test_later_rows_do_not_change_the_starts_of_a_resumed_study(board: Leaderboard, spaces: FamilySpaces) -> None:
    space = spaces.members[0]
    earlier = study(board, spaces, LONGER)
    record(board, earlier, space.config(1), 5.0)
    here = study(board, spaces, PROBLEM)
    before = transferred(board, here, spaces)
    record(board, earlier, space.config(2), 1.0)
    record(board, here, space.config(3), 1.0)
    record(board, study(board, spaces, PROBLEM, seed=7), space.config(4), 1.0)
    after = transferred(board, here, spaces)
    assert [entry.config for entry in before] == [entry.config for entry in after] == [space.config(1)]


def test_a_later_time_of_the_same_kernel_does_not_change_the_starts(board: Leaderboard, spaces: FamilySpaces) -> None:
    space = spaces.members[0]
    earlier = study(board, spaces, LONGER)
    for place in range(PER_SEARCH + 1):
        record(board, earlier, space.config(place), 5.0 + place, f"kernel {place}")
    here = study(board, spaces, PROBLEM)
    before = transferred(board, here, spaces)
    record(board, study(board, spaces, LONGER, seed=1), space.config(9), 1.0, f"kernel {PER_SEARCH}")
    after = transferred(board, here, spaces)
    assert [entry.config for entry in before] == [entry.config for entry in after]


def test_distant_studies_are_ignored(board: Leaderboard, spaces: FamilySpaces) -> None:
    distant = replace(PROBLEM, batch=2 ** (int(MAX_DISTANCE) + 1))
    record(board, study(board, spaces, distant), spaces.members[0].config(1), 5.0)
    assert transferred(board, study(board, spaces, PROBLEM), spaces) == []
