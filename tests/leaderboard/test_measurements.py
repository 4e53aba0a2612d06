"""Stored measurements besides the time: telemetry, energy, the samples of a pruned candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.leaderboard.pareto import pareto_front
from evoengine.leaderboard.records import RowFilter, Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import (
    Config,
    DeviceInfo,
    Duel,
    Evaluation,
    GpuReading,
    Problem,
    Status,
    Telemetry,
    Timing,
    Verdict,
)

GPU = DeviceInfo("cuda", "NVIDIA H200", "sm_90", False, driver="13.0", nvrtc="13.0.88", pci_bus_id="0000:3B:00.0")
COLD = GpuReading(1980, 3201, 38, 310.5, ("gpu_idle",))
HOT = GpuReading(1620, 3201, None, None, ("sw_power_cap", "sw_thermal_slowdown"))
SAMPLES = (6.0, 6.1, 5.9, 6.0, 6.0, 6.2, 6.0, 6.1)
DROPPED = "at least 18% slower than the best so far, 5.00 us, with 99% confidence, after 8 samples"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Leaderboard]:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as opened:
        yield opened


def study_of(board: Leaderboard, method: str = "graph-warm") -> Study:
    return board.open_study(StudyKey(Problem(1, 8, 512, 64), "mma", GPU, method, "evolution", 0))


def evaluation(number: int, us: float, status: Status = Status.OK, code: str = "", **timing: object) -> Evaluation:
    measured = Timing(us, us, us, False, "graph-warm", (us,) * 8, 10.0, "sdpa-cudnn")
    return Evaluation(
        Config.of("mma", {"BLOCK": number}),
        status,
        "" if status is Status.OK else DROPPED,
        code_hash=code or f"c{number}",
        verdict=Verdict(True, 1e-4, 1e-3, 1e-4, 5, "problem"),
        timing=replace(measured, **timing),  # type: ignore[arg-type]
    )


def test_telemetry_and_energy_round_trip(board: Leaderboard) -> None:
    seen = Telemetry(COLD, HOT, discarded=20, throttled=True, gpu="GPU-a")
    stored = evaluation(1, 5.0, telemetry=seen, energy_uj=1412.5)
    row_id = board.record(study_of(board), stored)
    record = board.get(row_id)
    assert record.evaluation == stored
    assert record.row.energy_uj == 1412.5
    blind = evaluation(2, 6.0, telemetry=Telemetry(GpuReading(), GpuReading(), missing="nvidia-ml-py is not installed"))
    assert board.get(board.record(study_of(board), blind)).evaluation == blind
    board.set_energy(row_id, 1400.0)
    assert board.rows(RowFilter(limit=1))[0].energy_uj == 1400.0


def test_a_duel_keeps_its_pairs_and_the_state_of_the_gpu(board: Leaderboard) -> None:
    study = study_of(board)
    first, second = board.record(study, evaluation(1, 5.0)), board.record(study, evaluation(2, 4.5))
    assert board.record_challenge(study.scope, first, None, None)
    duel = Duel((4.5,) * 6, (5.0,) * 6, 0.1, 0.1, 0.03, True, Telemetry(COLD, HOT, 10))
    assert board.record_challenge(study.scope, second, first, duel)
    assert board.challenges(study.scope)[-1].duel == duel


def test_a_pruned_candidate_is_stored_but_never_ranked(board: Leaderboard) -> None:
    """Even if its few samples are the fastest of all by noise."""
    study = study_of(board)
    board.record(study, evaluation(1, 5.0))
    dropped = evaluation(2, 4.0, Status.PRUNED, samples_us=SAMPLES)
    row_id = board.record(study, dropped)
    assert [row.id for row in board.rows()] == [1]
    assert [row.id for row in board.elites(study, 10)] == [1]
    record = board.get(row_id)
    assert (record.row.rank, record.row.status, record.row.reason) == (None, Status.PRUNED, DROPPED)
    assert record.evaluation.timing is not None
    assert record.evaluation.timing.samples_us == SAMPLES
    assert record.evaluation.value_us == 4.0
    assert board.evaluated(study) == 2, "an evaluation counts"


def test_elites_are_distinct_kernels(board: Leaderboard) -> None:
    """One kernel under several configs, studies or runs of the program counts once."""
    study, other = study_of(board), board.open_study(replace(study_of(board).key, seed=1))
    for number in range(6):
        board.record(study, evaluation(number, 5.0 + number / 10, code="same"))
    board.record(other, evaluation(1, 4.9, code="same"))
    board.record(study, evaluation(8, 7.0))
    board.record(study, evaluation(9, 6.0))
    assert [(row.code_hash, row.median_us) for row in board.elites(study, 3)] == [
        ("same", 4.9),
        ("c9", 6.0),
        ("c8", 7.0),
    ]


@pytest.mark.parametrize("method", ["graph-cold", "eager-warm", "eager-cold"])
def test_objectives_are_ranked_apart(board: Leaderboard, method: str) -> None:
    warm, other = study_of(board), study_of(board, method)
    assert warm.id != other.id
    assert warm.scope.key != other.scope.key
    first = board.record(warm, evaluation(1, 5.0))
    second = board.record(other, evaluation(1, 9.0, method=method))
    assert {row.id: (row.rank, row.method) for row in board.rows()} == {first: (1, "graph-warm"), second: (1, method)}
    assert board.record_challenge(warm.scope, first, None, None)
    assert board.champion(other.scope) is None


def test_the_front_has_the_rows_that_no_other_dominates(board: Leaderboard) -> None:
    study = study_of(board)
    both = [(5.0, 900.0), (4.0, 1000.0), (4.0, 990.0), (6.0, 900.0), (7.0, 100.0), (3.0, None)]
    for number, (us, energy_uj) in enumerate(both):
        board.record(study, evaluation(number, us, energy_uj=energy_uj))
    front = [(row.median_us, row.energy_uj) for row in pareto_front(board.rows())]
    assert front == [(4.0, 990.0), (5.0, 900.0), (7.0, 100.0)]
    assert pareto_front([]) == []
