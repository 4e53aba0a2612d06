"""Worker processes that fail in every way, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evoengine.device.worker import WorkerPool
from evoengine.errors import CandidateTimeoutError, LaunchError, UsageError, WorkerCrashError
from tests.device.serving import Served, start_broken, start_dying


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(Served, 1, 30.0) as one:
        yield one


def _gone(pid: int) -> bool:
    """Neither running nor waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def _wait_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while not _gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return _gone(pid)


def test_results_and_arguments_travel(pool: WorkerPool) -> None:
    value = {"list": [1, 2.5, None], "bytes": b"\0\xff"}
    assert pool.submit("echo", value).result() == value


def test_the_same_process_serves_many_calls(pool: WorkerPool) -> None:
    assert pool.submit("pid").result() == pool.submit("pid").result() != os.getpid()


def test_an_error_made_on_purpose_keeps_its_type_and_its_worker(pool: WorkerPool) -> None:
    pid = pool.submit("pid").result()
    with pytest.raises(LaunchError, match=r"^illegal address$"):
        pool.submit("refuse").result()
    assert pool.submit("pid").result() == pid


def test_a_bug_is_a_crash_told_in_one_line(pool: WorkerPool) -> None:
    error = pool.submit("stumble").exception()
    assert isinstance(error, WorkerCrashError)
    assert "KeyError" in str(error)
    assert "serving.py" in str(error)
    assert "\n" not in str(error)


def test_what_cannot_be_pickled_fails_its_own_call_only(pool: WorkerPool) -> None:
    assert isinstance(pool.submit("unsendable").exception(), WorkerCrashError)
    assert isinstance(pool.submit("echo", lambda: None).exception(), WorkerCrashError)
    assert pool.submit("echo", 1).result() == 1


@pytest.mark.parametrize(("method", "told"), [("die", "SIGSEGV"), ("leave", "exit code 3")])
def test_a_dead_worker_is_told_and_replaced(pool: WorkerPool, method: str, told: str) -> None:
    with pytest.raises(WorkerCrashError, match=told):
        pool.submit(method).result()
    assert pool.submit("echo", "next").result() == "next"


@pytest.mark.parametrize("method", ["hang", "spin"])
def test_a_late_worker_is_killed_and_replaced(pool: WorkerPool, method: str) -> None:
    pid = pool.submit("pid").result()
    with pytest.raises(CandidateTimeoutError, match=r"0\.2 s"):
        pool.submit(method, timeout_s=0.2).result()
    assert _wait_gone(pid)
    assert pool.submit("pid").result() != pid


def test_an_unhealthy_worker_answers_and_is_replaced(pool: WorkerPool) -> None:
    pid = pool.submit("pid").result()
    with pytest.raises(LaunchError, match=str(pid)):
        pool.submit("wreck").result()
    assert pool.submit("pid").result() != pid
    assert _wait_gone(pid)


def test_interrupts_do_not_reach_workers(pool: WorkerPool) -> None:
    assert pool.submit("interrupt_self").result() == "still here"


def test_several_workers_work_at_once() -> None:
    with WorkerPool(Served, 2, 30.0) as pool:
        first = pool.submit("hang")
        assert pool.submit("echo", "meanwhile").result() == "meanwhile"
        assert not first.done()


def test_close_kills_what_runs_and_cancels_what_waits() -> None:
    pool = WorkerPool(Served, 1, 600.0)
    pid = pool.submit("pid").result()
    running, waiting = pool.submit("spin"), pool.submit("echo", 1)
    while not running.running():
        time.sleep(0.01)
    pool.close()
    pool.close()
    assert isinstance(running.exception(), WorkerCrashError)
    assert waiting.cancelled()
    assert _wait_gone(pid)
    with pytest.raises(RuntimeError):
        pool.submit("echo", 1)


def test_a_factory_that_fails_tells_why_on_every_call() -> None:
    with WorkerPool(start_broken, 1, 30.0) as pool:
        for _ in range(2):
            with pytest.raises(UsageError, match="choose another"):
                pool.submit("echo", 1).result()


def test_a_factory_that_dies_is_a_crash() -> None:
    with WorkerPool(start_dying, 1, 30.0) as pool, pytest.raises(WorkerCrashError, match="exit code 7"):
        pool.submit("echo", 1).result()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = Path(__file__).parent / "serving.py"
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen([sys.executable, script, tmp_path], env=os.environ | {"PYTHONPATH": str(root)})
    try:
        while not (tmp_path / "pid").exists():
            assert parent.poll() is None
            time.sleep(0.05)
        pid = int((tmp_path / "pid").read_text())
        assert not _gone(pid)
    finally:
        parent.kill()
        parent.wait()
    assert _wait_gone(pid)
