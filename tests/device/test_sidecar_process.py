"""The process that computes for another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.search import search
from evoengine.errors import UsageError, WorkerCrashError


@pytest.fixture(scope="module")
def helper() -> Iterator[SidecarProcess]:
    with closing(SidecarProcess("helper", ("math", "no_such_module"))) as helper:
        yield helper


def _refuse(what: str) -> None:
    raise UsageError(f"not {what}")


def test_it_computes_one_call_after_the_other_in_a_process_of_its_own(helper: SidecarProcess) -> None:
    assert helper.run(partial(pow, 2, 5)) == 32
    assert helper.run(os.getpid) == helper.run(os.getpid) != os.getpid()


def _exit_code_of_another_process() -> int | None:
    other = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(7,), daemon=True)
    other.start()
    other.join()
    return other.exitcode


def test_a_call_may_start_processes(helper: SidecarProcess) -> None:
    assert helper.run(_exit_code_of_another_process) == 7


def test_a_daemonic_process_is_refused_by_name() -> None:
    """Python has no children of such a process; its own error is an assertion."""
    options = SearchOptions(device="emulator", budget=1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for call in (partial(SidecarProcess, "helper", ()), partial(search, "1x1x16x16", options)):
            with pytest.raises(UsageError, match=r"multiprocessing\.Pool.*ProcessPoolExecutor.*evoengine\.tune"):
                pool.apply(call)


def test_a_program_ends_though_nothing_has_closed_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from evoengine.device.workers.sidecar_process import SidecarProcess\n"
        "if __name__ == '__main__':\n"
        "    kept = SidecarProcess('helper', ())\n"
        "    print(kept.run(int))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(program)], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_an_error_of_a_call_is_raised_and_the_next_call_works(helper: SidecarProcess) -> None:
    with pytest.raises(UsageError, match="not this"):
        helper.run(partial(_refuse, "this"))
    assert helper.run(partial(pow, 2, 5)) == 32


@dataclass(frozen=True)
class Append:
    """Appends a line to a file; returns the number of lines."""

    file: Path
    line: str

    def __call__(self) -> int:
        with self.file.open("a") as stream:
            stream.write(f"{self.line}\n")
        return len(self.file.read_text().splitlines())


def test_a_call_that_was_begun_runs_once_and_another_one_replaces_it(helper: SidecarProcess, tmp_path: Path) -> None:
    one, two = Append(tmp_path / "lines", "one"), Append(tmp_path / "lines", "two")
    helper.begin(one)
    helper.begin(one)
    assert helper.run(Append(tmp_path / "lines", "one")) == 1
    helper.begin(one)
    assert helper.run(two) == 3
    assert helper.run(one) == 4
    assert one.file.read_text().split() == ["one", "one", "two", "one"]


def test_a_closed_sidecar_computes_nothing_here(tmp_path: Path) -> None:
    helper = SidecarProcess("helper", ())
    helper.close()
    with pytest.raises(WorkerCrashError, match="stopped"):
        helper.run(Append(tmp_path / "lines", "one"))
    assert not list(tmp_path.iterdir())


class SlowToSend:
    """A call that takes half a second to pickle."""

    def __init__(self) -> None:
        self.begun = Event()

    def __call__(self) -> int:
        return os.getpid()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self.begun.set()
        time.sleep(0.5)
        return SlowToSend, ()


def test_a_sidecar_that_is_closed_while_a_call_is_sent_ends_the_call() -> None:
    helper, call = SidecarProcess("helper", ()), SlowToSend()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(helper.run, call)
        assert call.begun.wait(10)
        helper.close()
        assert isinstance(running.exception(10), WorkerCrashError)


def test_a_dead_sidecar_is_replaced_by_a_local_call_and_closes_twice() -> None:
    with closing(SidecarProcess("helper", ())) as helper:
        os.kill(helper.run(os.getpid), signal.SIGKILL)
        assert helper.run(os.getpid) == os.getpid()
        assert helper.run(os.getpid) == os.getpid()
        helper.close()
