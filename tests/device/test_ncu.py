"""The table of Nsight Compute's raw page, and its disassembler's text, on recorded text of the documented formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.device import ncu
from evoengine.errors import MissingDependencyError

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


def test_no_table_and_why() -> None:
    assert ncu.parse_raw_page(REFUSED) == ()
    assert ncu.trouble_in(REFUSED).startswith("ERR_NVGPUCTRPERM - The user does not have permission")
    assert ncu.parse_raw_page("") == ()
    assert ncu.trouble_in("") == "no output"


def test_the_command() -> None:
    command = ncu.ncu_command(Path("/opt/ncu"), ("a.sum", "b.sum"), ["python3", "job"])
    assert command[0] == "/opt/ncu"
    assert command[command.index("--metrics") + 1] == "a.sum,b.sum"
    assert command[-2:] == ["python3", "job"]


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ncu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert ncu.find_ncu({"PATH": "", "CUDA_HOME": str(tmp_path)}) == program
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    with pytest.raises(MissingDependencyError, match="ncu"):
        ncu.require_ncu()
