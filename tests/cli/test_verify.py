"""``verify`` from the command line, with a replayed landscape as the GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.cli.verbs.verify import run_verify
from evoengine.engine.options.verbs import VerifyOptions
from evoengine.errors import MissingDependencyError, NothingFoundError
from evoengine.landscape.file import read_landscape
from evoengine.leaderboard.records import RowFilter, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo
from tests.cli.calling import Evo
from tests.landscape.making import RECORDED

TIMES_US = (3.0, 4.0, 5.0, 6.0)


@pytest.fixture
def board_file(tmp_path: Path) -> Path:
    """A leaderboard with predictions of four configs of the landscape, in reverse order of their recorded times."""
    landscape = read_landscape(RECORDED)
    assert landscape.problem is not None
    ordered = sorted((one for one in landscape.evaluations if one.ok), key=lambda one: one.value_us or 0)
    different = {one.value_us: one for one in reversed(ordered)}
    chosen = list(different.values())[:: len(different) // 4][:4]
    device = DeviceInfo("emulator", "NVIDIA L4", "sm_89", predicted=True)
    file = tmp_path / "lb.db"
    with Leaderboard(f"sqlite:///{file}") as board:
        study = board.open_study(StudyKey(landscape.problem, "mma", device, "model-v2", "random", 0))
        for number, (one, us) in enumerate(zip(chosen, TIMES_US, strict=True)):
            assert one.timing is not None
            timing = replace(one.timing, median_us=us, low_us=us, high_us=us, method="model-v2")
            board.record(study, replace(one, timing=timing, code_hash=f"sm89-{number}"), number)
    return file


def test_elites_are_measured_stored_and_compared(evo: Evo, board_file: Path) -> None:
    command = ("verify", f"--db={board_file}", f"--device=replay:{RECORDED}", "--top=3")
    done = evo(*command, "--json")
    assert done.code == 0, done.err
    document = done.json()
    assert [one["predicted_us"] for one in document["elites"]] == [3.0, 4.0, 5.0]
    assert document["spearman"] == pytest.approx(-1), "the predictions are in reverse order"
    assert document["best_rank"] == 3
    assert all(one["ratio"] == one["measured_us"] / one["predicted_us"] for one in document["elites"])
    with Leaderboard(f"sqlite:///{board_file}") as board:
        assert len(board.rows(RowFilter(device_kind="replay"))) == 3
        assert len(board.rows(RowFilter(device_kind="emulator"))) == 4
    again = evo(*command)
    assert again.code == 0, again.err
    assert "rank correlation -1.00 (Spearman)" in again.out
    assert "predicted as number 3" in again.out
    with Leaderboard(f"sqlite:///{board_file}") as board:
        assert len(board.rows(RowFilter(device_kind="replay"))) == 3, "stored rows are not measured again"


def test_the_shortlist_is_what_verify_measures(evo: Evo, board_file: Path) -> None:
    listed = evo("leaderboard", f"--db={board_file}", "--shortlist", "--top=3", "--json").json()
    assert [one["median_us"] for one in listed] == [3.0, 4.0, 5.0]
    refused = evo("leaderboard", f"--db={board_file}", "--shortlist", "--pareto")
    assert refused.code == 2
    assert "give one" in refused.err


def test_missing_predictions_and_a_missing_gpu_are_errors(board_file: Path) -> None:
    problem = read_landscape(RECORDED).problem
    assert problem is not None
    options = VerifyOptions(problem, device=f"replay:{RECORDED}", db=str(board_file))
    with pytest.raises(NothingFoundError, match="NVIDIA A10"):
        run_verify(replace(options, target="a10"), json_output=True)
    with pytest.raises(MissingDependencyError, match="GPU"):
        run_verify(replace(options, device="emulator"), json_output=True)
