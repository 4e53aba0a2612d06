"""The table of Nsight Compute's raw page, and its disassembler's text, on recorded text of the documented formats."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evoengine.device.contract import random_inputs
from evoengine.device.tools import ncu
from evoengine.device.tools.hardware_counters import COUNTERS
from evoengine.device.tools.launcher import LaunchJob
from evoengine.errors import MissingDependencyError
from evoengine.model import Problem
from tests.device.makers import make

PAGE = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "evo_attention" - 0: 0%....50%....100% - 3 passes
==PROF== Profiling "evo_combine" - 1: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"gpu__time_duration.sum","l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum","smsp__inst_executed.sum",\
"smsp__inst_executed_pipe_tensor_op_hmma.sum"
"","","","","","","","","","","","ns","","inst","inst"
"0","4711","python3.12","127.0.0.1","evo_attention(AttentionParams)","1","7","(128, 1, 1)","(8, 8, 1)","0","9.0",\
"5,472","1,024","1,026,048","n/a"
"1","4711","python3.12","127.0.0.1","evo_combine(AttentionParams)","1","7","(64, 1, 1)","(8, 1, 1)","0","9.0",\
"2,016.5","0","8,192","n/a"
"""
REFUSED = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0.
"""


def test_the_raw_page() -> None:
    first, second = ncu.parse_raw_page(PAGE)
    assert first.kernel == "evo_attention(AttentionParams)"
    assert first.values == {
        "gpu__time_duration.sum": 5472.0,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 1024.0,
        "smsp__inst_executed.sum": 1026048.0,
    }
    assert first.units["gpu__time_duration.sum"] == "ns"
    assert second.values["gpu__time_duration.sum"] == 2016.5
    kept = ncu.only(("smsp__inst_executed.sum", "sm__cycles_active.sum"), first)
    assert (kept.kernel, kept.values, kept.units) == (
        first.kernel,
        {"smsp__inst_executed.sum": 1026048.0},
        {"smsp__inst_executed.sum": "inst"},
    )


def test_output_without_a_table_gives_the_reason() -> None:
    assert ncu.parse_raw_page(REFUSED) == ()
    assert ncu.trouble_in(REFUSED).startswith("ERR_NVGPUCTRPERM")
    assert ncu.parse_raw_page("") == ()
    assert ncu.trouble_in("") == "no output"


def test_the_command() -> None:
    command = ncu.ncu_command(Path("/opt/ncu"), ("a.sum", "b.sum"), ["python3", "job"])
    assert command[0] == "/opt/ncu"
    assert command[command.index("--metrics") + 1] == "a.sum,b.sum"
    assert command[-2:] == ["python3", "job"]


def test_the_profiled_launcher_is_given_its_job(tmp_path: Path) -> None:
    """A program in ncu's place does what the launcher does: it reads the job that the first line of its input names."""
    program = tmp_path / "ncu"
    body = "path = sys.stdin.readline().strip()\nif path and open(path, 'rb').read():\n"
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}    print({PAGE!r})\n")
    program.chmod(0o755)
    problem = Problem(1, 1, 5, 16)
    job = LaunchJob.of(make(problem, None), random_inputs(problem, 1, "bshd"))
    (first, _) = ncu.profile_job(program, job, ("gpu__time_duration.sum",))
    assert first.values == {"gpu__time_duration.sum": 5472.0}


def test_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ncu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert ncu.find_ncu({"PATH": "", "CUDA_HOME": str(tmp_path)}) == program
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    with pytest.raises(MissingDependencyError, match="ncu"):
        ncu.require_ncu()


def test_every_metric_is_one_that_an_h200_has() -> None:
    """The names are those that ``ncu --query-metrics`` of CUDA 13.0 listed on an H200, cut down to such as ours."""
    listed = (Path(__file__).parent / "recorded" / "metrics_gh100.txt").read_text("utf-8").split()
    asked = [metric for metric in ncu.METRICS if not metric.startswith("launch__")]  # those are no counters
    assert {metric.split(".")[0] for metric in asked} <= set(listed)
    assert len(set(ncu.METRICS)) == len(ncu.METRICS)


def test_counters_in_plain_words() -> None:
    """Counts of one scalar kernel on an H200, which holds no tensor instruction."""
    values = {
        "smsp__inst_executed_pipe_tensor_op_hmma.sum": 5120.0,
        "smsp__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum": 5120.0,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 2_375_680.0,
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum": 16_384.0,
        "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 1_060_864.0,
    }
    named = {counter.name: counter.value(values) for counter in COUNTERS}
    assert named["tensor instructions"] == 0
    assert named["sectors, loads"] == 16_384
    assert named["sectors, cp.async"] == 2_359_296
    assert named["wavefronts, loads"] == 1_060_864  # a GPU that does not list ldmatrix apart
    assert named["shared loads"] is None
    assert next(one for one in COUNTERS if one.name == "tensor instructions").value({next(iter(values)): 7.0}) == 7
