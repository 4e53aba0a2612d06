"""A program that starts workers: without a guard it does not run again in them, with one they find its functions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNGUARDED = """
from multiprocessing import spawn
print("begins", flush=True)
from evoengine.device.workers.sidecar_process import SidecarProcess
before = spawn.get_preparation_data
helper = SidecarProcess("helper", ())
print(helper.run("type".upper))
assert spawn.get_preparation_data is before
helper.close()
"""
SEARCH = """
import evoengine
print("begins", flush=True)
off = dict(starts=False, forecast=False, transfer=False, skip=False)
options = evoengine.SearchOptions(budget=1, family="mma", device="emulator", **off)
print(evoengine.search("1x1x16x16", options).progress.evaluated)
"""
OWN_FUNCTION = """
import os
from evoengine.device.workers.sidecar_process import SidecarProcess
print(__name__, flush=True)
class Answer:
    def __call__(self):
        return os.getpid()
if __name__ == "__main__":
    helper = SidecarProcess("helper", ())
    print(helper.run(Answer()) != os.getpid())
    helper.close()
"""


def run_file(folder: Path, text: str) -> list[str]:
    """Runs a program and returns what it and its processes print, without errors."""
    file = folder / "program.py"
    file.write_text(text.lstrip())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-2000:]
    return (done.stdout + done.stderr).split()


def test_a_program_without_a_guard_runs_once(tmp_path: Path) -> None:
    assert run_file(tmp_path, UNGUARDED) == ["begins", "TYPE"]


@pytest.mark.slow
def test_a_program_without_a_guard_searches(tmp_path: Path) -> None:
    assert run_file(tmp_path, SEARCH) == ["begins", "1"]


def test_a_process_finds_what_the_program_defines(tmp_path: Path) -> None:
    assert run_file(tmp_path, OWN_FUNCTION) == ["__main__", "True", "__mp_main__"]
