"""compute-sanitizer: its reports, in the format of its user guide, where it is found, and how it may end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.device.contract import GAPPED, random_inputs
from evoengine.device.tools.launcher import LAUNCHED, LaunchJob
from evoengine.device.tools.sanitizer import TOOLS, Sanitizers, find_sanitizer, first_finding, sanitize
from evoengine.device.workers.wire import WireError, decode, encode
from evoengine.errors import LaunchError
from evoengine.kernel.memory_layout import AxisOrder, CallLayout
from evoengine.model import Problem
from tests.device.makers import make

CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at evo_attention+0x1d0 in kernel.cu:41
=========     by thread (31,0,0) in block (5,0,0)
=========     Access at 0x7f2b5a000400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2b5a000000 of size 1024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2f1b40]
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at evo_attention+0x8b0 in kernel.cu:97
=========     and Read access at evo_attention+0xa10 in kernel.cu:104 [128 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at evo_combine+0x90 in kernel.cu:12
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f2b5a000000
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at evo_attention+0x5c0 in kernel.cu:88
=========     by thread (64,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
BROKEN = """========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
"""
FIRST_LINES = {
    "memcheck": (MEMCHECK, "Invalid __global__ write of size 2 bytes at evo_attention+0x1d0 in kernel.cu:41"),
    "racecheck": (
        RACECHECK,
        (
            "Error: Race reported between Write access at evo_attention+0x8b0 in kernel.cu:97 "
            "and Read access at evo_attention+0xa10 in kernel.cu:104 [128 hazards]"
        ),
    ),
    "initcheck": (
        INITCHECK,
        "Uninitialized __global__ memory read of size 4 bytes at evo_combine+0x90 in kernel.cu:12",
    ),
    "synccheck": (
        SYNCCHECK,
        "Barrier error detected. Divergent thread(s) in block. at evo_attention+0x5c0 in kernel.cu:88",
    ),
}
PROBLEM = Problem(2, 4, 5, 16, kv_heads=2, seq_kv=9, sink=True, lse=True)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_first_finding_has_its_location(tool: str) -> None:
    report, line = FIRST_LINES[tool]
    assert first_finding(f"launcher's own words\n{report}") == line


def test_a_report_without_a_finding() -> None:
    assert first_finding(CLEAN) == first_finding("") == first_finding("=========\n========= \n") == ""


def test_a_long_line_is_shortened() -> None:
    assert len(first_finding(f"========= {'x' * 1000}\n")) == 301


def install(folder: Path, body: str) -> Path:
    """A program with the tool's name."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "compute-sanitizer"
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}")
    program.chmod(0o755)
    return program


def test_it_is_found_on_path_or_beside_cuda(tmp_path: Path) -> None:
    on_path, beside = install(tmp_path / "tools", ""), install(tmp_path / "cuda" / "bin", "")
    cuda = str(tmp_path / "cuda")
    assert find_sanitizer({"PATH": str(tmp_path / "tools"), "CUDA_HOME": cuda}) == on_path
    assert find_sanitizer({"PATH": str(tmp_path), "CUDA_HOME": cuda}) == beside
    assert find_sanitizer({"CUDA_PATH": cuda}) == beside


PROGRAM = f"""
tool = sys.argv[sys.argv.index("--tool") + 1]
code = int(sys.argv[sys.argv.index("--error-exitcode") + 1])
reports = { ({name: report for name, (report, _) in FIRST_LINES.items()})!r}
job = open(sys.stdin.readline().strip(), "rb").read()
print({LAUNCHED!r})
"""
FINDS_RACES = 'print(reports[tool] if tool == "racecheck" else ""); sys.exit(code if tool == "racecheck" else 0)\n'


def job() -> LaunchJob:
    return LaunchJob.of(make(PROBLEM, None), random_inputs(PROBLEM, 1, "bshd"))


def test_findings_are_reported_by_tool(tmp_path: Path) -> None:
    reports = sanitize(install(tmp_path, PROGRAM + FINDS_RACES), job())
    assert [report.tool for report in reports] == list(TOOLS)
    found = {report.tool: report.finding for report in reports if report.finding}
    assert found == {"racecheck": FIRST_LINES["racecheck"][1]}
    assert not any(report.trouble for report in reports)
    assert str(reports[0]).startswith("compute-sanitizer memcheck: ")


def test_launchers_wait_for_their_kernel_and_end_with_their_parent(tmp_path: Path) -> None:
    """They say when they begin and when they end."""
    log = tmp_path / "log"
    body = f"""
import time
def log(text):
    with open({str(log)!r}, "a") as file:
        file.write(text + chr(10))
log("begins")
line = sys.stdin.readline()
log("looks" if line else "nothing")
print({LAUNCHED!r})
"""
    tool = install(tmp_path, body)
    with closing(Sanitizers(tool)) as tools:
        wait_for(log, ["begins"] * len(TOOLS))
        assert [str(report) for report in tools.run(job())] == [
            f"compute-sanitizer {name}: nothing found" for name in TOOLS
        ]
    assert log.read_text().split() == ["begins"] * len(TOOLS) + ["looks"] * len(TOOLS)
    log.unlink()
    waiting = Sanitizers(tool)
    wait_for(log, ["begins"] * len(TOOLS))
    waiting.close()
    assert log.read_text().split() == ["begins"] * len(TOOLS)
    orphans = f"""
import time
from pathlib import Path
from evoengine.device.tools.sanitizer import Sanitizers
tools = Sanitizers(Path({str(tool)!r}))
while Path({str(log)!r}).read_text().split().count("begins") < {2 * len(TOOLS)}: time.sleep(0.01)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", orphans], check=False).returncode == -signal.SIGKILL
    wait_for(log, ["begins"] * 2 * len(TOOLS) + ["nothing"] * len(TOOLS))


def wait_for(log: Path, words: list[str]) -> None:
    """Until these words are in a file."""
    while not log.exists() or log.read_text().split() != words:
        time.sleep(0.01)


def test_a_tool_that_ran_no_kernel_reports_trouble(tmp_path: Path) -> None:
    """As when the launcher never got its job."""
    reports = sanitize(install(tmp_path, f"print({CLEAN!r})\n"), job())
    assert [(report.finding, report.trouble) for report in reports] == [("", "exit code 0")] * len(TOOLS)


def test_a_tool_that_cannot_run_reports_trouble(tmp_path: Path) -> None:
    for body in (f"print({BROKEN!r}); sys.exit(255)\n", "sys.stderr.write('one\\nno such device\\n'); sys.exit(3)\n"):
        reports = sanitize(install(tmp_path, body), job())
        assert not any(report.finding for report in reports)
        assert all(report.trouble for report in reports)
    assert reports[0].trouble == "no such device"
    missing = sanitize(tmp_path / "nowhere" / "compute-sanitizer", job())
    assert all("No such file" in report.trouble for report in missing)


# -- the launcher -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bhsd", "bshd", GAPPED], ids=str)
def test_a_job_survives_a_round_trip(layout: AxisOrder | CallLayout) -> None:
    inputs = random_inputs(PROBLEM, 3, layout, -0.3)
    kernel = make(PROBLEM, None, "steps")
    again = decode(LaunchJob, encode(LaunchJob.of(kernel, inputs)))
    assert again == LaunchJob.of(kernel, inputs)
    assert again.steps == kernel.source.launch.steps(PROBLEM)
    assert again.cubin == kernel.binary.cubin
    rebuilt = again.inputs()
    for name in ("q", "k", "v", "q_memory", "k_memory", "v_memory", "sink"):
        np.testing.assert_array_equal(getattr(rebuilt, name), getattr(inputs, name))
    assert (rebuilt.layout, rebuilt.scale) == (inputs.layout, -0.3)
    with pytest.raises(WireError):
        decode(LaunchJob, b"not a job")


def test_a_launcher_that_cannot_launch_reports_one_line(tmp_path: Path) -> None:
    """The tools run it; here it is run by a program that only passes it on, and its job is none."""
    body = "import subprocess\nsys.exit(subprocess.run(sys.argv[-3:], input='/dev/null', text=True).returncode)\n"
    (report, *_) = sanitize(install(tmp_path, body), job())
    assert report.trouble.startswith("launcher: ")


@pytest.mark.gpu
def test_the_launcher_runs_on_a_gpu_without_a_tool(tmp_path: Path) -> None:
    body = "import os\nos.execv(sys.argv[-3], sys.argv[-3:])\n"
    for report in sanitize(install(tmp_path, body), job()):
        assert (report.finding, report.trouble) == ("", "")


def test_a_generated_kernel_must_be_admitted() -> None:
    kernel, inputs = make(PROBLEM, None), random_inputs(PROBLEM, 1)
    untrusted = replace(kernel, source=replace(kernel.source, untrusted=True))
    with pytest.raises(LaunchError, match="emulator"):
        LaunchJob.of(untrusted, inputs)
    assert LaunchJob.of(replace(untrusted, admitted=True), inputs) == LaunchJob.of(kernel, inputs)
