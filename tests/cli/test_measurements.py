"""Output about measurements: racing, telemetry, energy. The rows imitate those of a GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.cli.output.run_summary import effort_lines
from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Evaluation, GpuReading, Problem, Status, Telemetry, Timing, Verdict
from evoengine.search.measurement_stats import MeasurementStats
from evoengine.search.settings import Progress, SearchResult, StopReason
from tests.cli.calling import Evo

BEFORE = GpuReading(1980, 3201, 38, 310.0, ("gpu_idle",))
AFTER = GpuReading(1965, 3201, 41, 342.0, ("sw_power_cap",))
SLOW = "at least 18% slower than the best so far, 4.00 us, with 99% confidence, after 8 samples"


def row(number: int, us: float, energy_uj: float | None, telemetry: Telemetry | None) -> Evaluation:
    timing = Timing(us, us, us, False, "graph-warm", (us,) * 30, 9.0, "sdpa-cudnn", telemetry, energy_uj)
    verdict = Verdict(True, 1e-4, 1e-3, 1e-4, 5, "problem")
    return Evaluation(
        Config.of("mma", {"BLOCK": number}), Status.OK, code_hash=f"c{number}", verdict=verdict, timing=timing
    )


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Four rows: the fastest, one that needs less energy, one that is neither, and one that was pruned."""
    device = DeviceInfo("cuda", "NVIDIA H200", "sm_90", False, "13.0", "13.0.88")
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        study = board.open_study(StudyKey(Problem(1, 8, 512, 64), "mma", device, "graph-warm", "evolution", 0))
        board.record(study, row(1, 4.0, 1500.0, Telemetry(BEFORE, AFTER, 20, True, gpu="GPU-a")))
        board.record(study, row(2, 5.0, 1200.0, Telemetry(GpuReading(), GpuReading(), missing="no NVML here")))
        board.record(study, row(3, 6.0, 1300.0, None))
        board.record(study, replace(row(4, 6.1, None, Telemetry(BEFORE, BEFORE)), status=Status.PRUNED, reason=SLOW))
    return tmp_path


@pytest.mark.usefixtures("database")
def test_the_leaderboard_has_energy_and_the_pareto_front(evo: Evo) -> None:
    rows = evo("leaderboard", "--json").json()
    assert [(one["median_us"], one["energy_uj"]) for one in rows] == [(4.0, 1500.0), (5.0, 1200.0), (6.0, 1300.0)]
    table = evo("leaderboard").out
    assert " uJ " in table
    assert "1200.0" in table
    front = evo("leaderboard", "--pareto", "--json").json()
    assert [one["id"] for one in front] == [1, 2]
    assert [one["id"] for one in evo("leaderboard", "--pareto", "--top", "1", "--json").json()] == [1]
    none = evo("leaderboard", "--pareto", "--problem", "long").out
    assert "energy" in none


@pytest.mark.usefixtures("database")
def test_a_row_shows_the_state_of_the_gpu(evo: Evo) -> None:
    whole = evo("leaderboard", "show", "1").out
    assert "1500.0 uJ" in whole
    for fact in (
        *("SM 1980 to 1965 MHz", "memory 3201 MHz", "38 to 41 C", "310 to 342 W", "gpu_idle, sw_power_cap", "GPU-a"),
        *("20 samples discarded", "throttled in the end"),
    ):
        assert fact in whole, fact
    assert "no NVML here" in evo("leaderboard", "show", "2").out
    assert "GPU " not in evo("leaderboard", "show", "3").out
    timing = evo("leaderboard", "show", "1", "--json").json()["timing"]
    assert timing["telemetry"]["after"]["reasons"] == ["sw_power_cap"]


@pytest.mark.usefixtures("database")
def test_a_pruned_row_has_a_reason_and_no_rank(evo: Evo) -> None:
    assert SLOW in evo("leaderboard", "--status", "pruned").out
    dropped = evo("leaderboard", "--status", "pruned", "--json").json()
    assert [(one["id"], one["rank"], one["status"]) for one in dropped] == [(4, None, "pruned")]


def test_launches_are_not_timed_without_a_gpu(evo: Evo) -> None:
    done = evo("search", "--device", "emulator", "--eager", "--budget", "1")
    assert done.code == 2
    assert "--eager" in done.err


def result(**changes: object) -> SearchResult:
    progress = Progress(100, 100, 0, 90, 10, {Status.OK: 90}, 10.0, 4.0, 1, 2.0)
    stages = {"render": 0.5, "compile": 60.0, "parity": 2.0, "bench": 4.0}
    whole = SearchResult(StopReason.BUDGET_REACHED, progress, None, (), stages, overhead_s=1.5, devices=1)
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_the_summary_has_stage_times_and_overhead() -> None:
    lines = list(effort_lines(result()))
    assert re.findall(r"(\w+) ([\d.]+) s\b", lines[0])[:4] == [
        ("render", "0.5"), ("compile", "60.0"), ("parity", "2.0"), ("bench", "4.0"),
    ]  # fmt: skip
    assert re.search(r"device\b.* 60%", lines[1])
    assert "overhead 15 ms" in lines[1]
    assert len(lines) == 2, "nothing was measured"
    assert re.search(r"2 device workers .*30%", list(effort_lines(result(devices=2)))[1])


def test_the_summary_has_racing_and_telemetry() -> None:
    tally = MeasurementStats(90, 1500, 60, 600, discarded=20, throttled=1, sm_mhz=(1965, 1980), hottest_c=44)
    *_, racing, telemetry = effort_lines(result(measurements=tally))
    assert re.findall(r"[\d.]+", racing) == ["30", "60", "10.0"], "timed in full, stopped early, after so many samples"
    assert telemetry.startswith("telemetry 20 samples discarded")
    assert re.findall(r"\d+", telemetry) == ["20", "1", "1965", "1980", "44"]
    blind = MeasurementStats(90, 2700, missing="nvidia-ml-py is not installed: python -m pip install nvidia-ml-py")
    *_, racing, telemetry = effort_lines(result(measurements=blind))
    assert re.findall(r"\d+", racing) == ["90", "0"]
    assert telemetry.startswith("telemetry none")
    assert "nvidia-ml-py" in telemetry
