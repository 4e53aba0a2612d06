"""``profile`` from the command line: counters of a stored row by source line, its PTX and SASS, and its errors."""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from evoengine.engine.devices.gpus import find_gpu
from evoengine.kernel.compile.disassembly import find_disassembler
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import HardwareProfile, KernelCounters
from tests.cli.calling import Evo

COUNTED_AT = datetime.fromisoformat("2026-01-02T03:04")
without_gpu = pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU")


@pytest.fixture
def searched(small: Path, tmp_path: Path) -> Path:
    """A leaderboard with rows of the mma family."""
    return Path(shutil.copy(small / "leaderboard.db", tmp_path))


def test_counters_by_source_line(evo: Evo, searched: Path) -> None:
    done = evo("profile", "1", "--lines", "3")
    assert (done.code, done.err) == (0, ""), done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("row 1: mma, ")
    assert "predicted" in lines[0]
    assert "bound: " in lines[1]
    assert lines[3].startswith("Occupancy: ")
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("line ")) :]
    assert len([line for line in table if "%" in line]) >= 3
    source = evo("leaderboard", "show", "1", "--json").json()["source"].splitlines()
    for line in table[1:4]:
        number, text = line.split()[0], line.split("  ")[-1].strip()
        if number != "-" and not text.startswith("("):
            assert source[int(number) - 1].strip() == text


def test_the_document_adds_up(evo: Evo, searched: Path) -> None:
    document = evo("profile", "1", "--json").json()
    assert document["id"] == 1
    assert document["measured_us"] is None
    assert document["predicted_us"] == pytest.approx(evo("leaderboard", "show", "1", "--json").json()["median_us"])
    launch = document["launches"][0]
    assert launch["entry"] == "evo_attention"
    assert sum(launch["pipes"].values()) == launch["warp_instructions"]
    assert sum(line["executions"] for line in launch["lines"]) == launch["warp_instructions"]
    assert sum(site["executions"] for site in launch["sites"]) == launch["warp_instructions"]
    assert (
        sum(line["wavefronts"] for line in launch["lines"]) == sum(site["wavefronts"] for site in launch["sites"]) > 0
    )
    costs = [line["cost"] for line in launch["lines"]]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.thorough
def test_a_small_problem_has_the_predicted_time_of_its_row(evo: Evo) -> None:
    done = evo("search", "--problem", "1x1x1x8", "--device", "emulator", "--budget", "1", "--json")
    document = evo("profile", "--json").json()
    assert document["launches"][0]["conflicts"] > 1
    assert document["predicted_us"] == pytest.approx(done.json()["best"]["median_us"], rel=1e-9)


def test_ptx(evo: Evo, searched: Path) -> None:
    done = evo("profile", "1", "--ptx")
    assert done.code == 0
    assert ".visible .entry evo_attention(" in done.out
    assert ".loc" in done.out


def test_sass_or_the_package_to_install(evo: Evo, searched: Path) -> None:
    done = evo("profile", "1", "--sass")
    if find_disassembler() is None:
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "nvidia-cuda-nvdisasm" in done.err
    else:
        assert done.code == 0, done.err
        assert "HMMA" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("99",), "99"),
        (("1", "--ptx", "--sass"), "--sass"),
        (("1", "--ptx", "--json"), "--json"),
        (("1", "--sass", "--json"), "--json"),
        (("one",), "rank:N"),
        (("1", "--db", "missing.db"), "missing.db"),
        pytest.param(("1", "--ncu"), "nvidia-smi", marks=without_gpu),
        (("1", "--again"), "--ncu"),
    ],
)
def test_errors_are_one_line(quick_evo: Evo, searched: Path, arguments: tuple[str, ...], says: str) -> None:
    done = quick_evo("profile", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert done.err.startswith("error: ")
    assert says in done.err


def keep_counters(row_id: int, board: Path) -> None:
    """Stores counters of two launches with a row; the second launch is the longer one."""
    metrics = {"gpu__time_duration.sum": 2000.0, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 81.0}
    first = KernelCounters("evo_attention", metrics | {"smsp__inst_executed.sum": 1.0}, dict.fromkeys(metrics, "x"))
    second = KernelCounters("evo_combine", {**metrics, "gpu__time_duration.sum": 1000.0}, dict.fromkeys(metrics, "x"))
    found = HardwareProfile((second, first), "NVIDIA H200", "Nsight Compute 1.2", "c0de", COUNTED_AT)
    with Leaderboard(f"sqlite:///{board}", create=False) as store:
        store.add_profile(row_id, found)


def test_stored_counters_are_shown_with_the_row(quick_evo: Evo, searched: Path) -> None:
    assert quick_evo("leaderboard", "show", "1", "--json").json()["hardware"] is None
    keep_counters(1, searched)
    done = quick_evo("profile", "1", "--ncu")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("row 1: ")
    assert all(word in lines[0] for word in ("Nsight Compute 1.2", "NVIDIA H200", "2026-01-02 03:04", "c0de"))
    assert sum(line.startswith("Memory-bound: DRAM at 81 %") for line in lines) == 2
    assert any(line.split() == ["instructions", "1"] for line in lines)
    document = quick_evo("profile", "1", "--ncu", "--json").json()
    assert [launch["kernel"] for launch in document["launches"]] == ["evo_combine", "evo_attention"]
    assert document["launches"][1]["metrics"]["smsp__inst_executed.sum"] == 1.0
    assert {launch["bound"] for launch in document["launches"]} == {"memory-bound"}
    shown = quick_evo("leaderboard", "show", "1").out
    assert "Memory-bound: DRAM at 81 %" in shown
    assert "Nsight Compute 1.2 on NVIDIA H200" in shown
    hardware = quick_evo("leaderboard", "show", "1", "--json").json()["hardware"]
    assert {"id": 1, **hardware} == document
    assert re.search("NVIDIA H200 .*Nsight Compute 1.2.* Memory-bound", quick_evo("profile", "1").out)
    assert quick_evo("leaderboard", "show", "2", "--json").json()["hardware"] is None


@pytest.mark.gpu
def test_hardware_counters_or_the_reason_for_their_absence(evo: Evo, searched: Path) -> None:
    done = evo("profile", "1", "--ncu", "--json")
    if done.code == 0:
        launch = done.json()["launches"][0]
        assert launch["metrics"]["smsp__inst_executed.sum"] > 0
        assert launch["bound"].endswith("-bound")
        assert launch["registers"] > 0
        assert evo("profile", "1", "--ncu", "--json").json() == done.json(), "stored counters are not counted again"
        assert evo("leaderboard", "show", "1", "--json").json()["hardware"]["launches"][0] == launch
    else:
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "ncu" in done.err
