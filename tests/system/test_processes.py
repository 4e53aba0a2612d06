"""Processes and what they leave: identity, temporary folders, stop signals, standard streams, folders of the user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from evoengine.kernel.compile.cache import default_cache_dir, usable_cache_dir
from evoengine.system.processes import is_running, process_start
from evoengine.system.stop_signals import STOP_SIGNALS, on_stop_signal
from evoengine.system.streams import Output
from evoengine.system.temporary import TemporaryFolder, sweep_temporary_folders
from evoengine.system.user_folders import user_folder

LEAVE_A_FOLDER = (
    "import os, signal; from evoengine.system.temporary import TemporaryFolder\n"
    "folder = TemporaryFolder(); (folder.path / 'data').write_text('x'); print(folder.path, flush=True)\n"
)


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**40])
def test_ids_that_name_no_process_are_not_running(pid: int) -> None:
    assert not is_running(pid, "")
    assert not is_running(pid, process_start(os.getpid()))


def test_a_process_is_told_apart_by_its_start() -> None:
    own = process_start(os.getpid())
    assert is_running(os.getpid(), own)
    assert not is_running(os.getpid(), str(int(own) + 1))
    assert not is_running(os.getpid(), "")


def test_the_next_start_removes_folders_of_killed_processes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", LEAVE_A_FOLDER + "os.kill(os.getpid(), signal.SIGKILL)"],
        env=environment, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    dead = Path(killed.stdout.strip())
    assert dead.is_dir()
    target = tmp_path / "target"
    target.mkdir()
    (dead / "link").symlink_to(target)
    foreign = [tmp_path / "evoengine-abcdefgh", tmp_path / "evoengine-1-1-x.log", target]
    foreign[0].mkdir()
    foreign[1].write_text("")
    link = tmp_path / "evoengine-4194303-1-link"
    link.symlink_to(target)
    with TemporaryFolder() as own:
        sweep_temporary_folders()
        assert own.is_dir()
    assert not dead.exists()
    assert all(path.exists() for path in foreign)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in (*foreign, link))


def test_a_folder_that_another_container_uses_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process id means nothing here, but it holds a lock."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with TemporaryFolder() as own:
        monkeypatch.setattr("evoengine.system.temporary.is_running", lambda *_: False)
        sweep_temporary_folders()
        assert own.is_dir()


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
def test_every_stop_signal_is_handled_once(number: signal.Signals) -> None:
    inherited = signal.signal(number, signal.default_int_handler)  # under nohup, the tests inherit an ignored SIGHUP
    try:
        before = [signal.getsignal(one) for one in STOP_SIGNALS]
        received: list[int] = []
        with on_stop_signal(lambda: received.append(1), once=True):
            os.kill(os.getpid(), number)
            assert received == [1]
            assert [signal.getsignal(one) for one in STOP_SIGNALS] == before, "the next signal has its usual effect"
        assert [signal.getsignal(one) for one in STOP_SIGNALS] == before
    finally:
        signal.signal(number, inherited)


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_stop_signal(lambda: pytest.fail("not ignored"), once=True):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_output_swallows_everything_after_its_first_error() -> None:
    reader, writer = os.pipe()
    output = Output(writer)
    assert output.write(b"text") == 4
    os.close(reader)
    assert [output.write(b"lost"), output.write(b"too")] == [4, 3]
    assert output.lost_reader
    os.close(writer)


@pytest.mark.parametrize("home", ["", "relative"])
def test_folders_of_the_user_are_absolute(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    for kind, name in (("cache", "CACHE"), ("config", "CONFIG"), ("state", "STATE")):
        monkeypatch.setenv(f"XDG_{name}_HOME", "relative")
        found = user_folder(kind)  # type: ignore[arg-type]
        assert found is None or (found.is_absolute() and found.parent != Path("/.cache"))
        monkeypatch.setenv(f"XDG_{name}_HOME", "/absolute")
        assert user_folder(kind) == Path("/absolute/evoengine")  # type: ignore[arg-type]


def test_a_user_without_a_home_has_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evoengine.system.user_folders.user_cache_path", lambda *_, **__: Path("~/.cache/evoengine"))
    assert user_folder("cache") is None
    assert default_cache_dir().parent.is_file()
    assert usable_cache_dir() is None
