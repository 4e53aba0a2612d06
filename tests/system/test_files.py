"""Files that the user names: whole or not at all, through symlinks, with their mode; devices and pipes as they are."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from evoengine.errors import UsageError
from evoengine.system.files import refuse_existing, write_file


def test_a_new_file_has_the_mode_of_the_umask_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    file = tmp_path / "new.cu"
    umask = os.umask(0o027)
    try:
        write_file(file, "a")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.chmod(0o604)
    write_file(file, b"b")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("b", 0o604)
    assert list(tmp_path.iterdir()) == [file]


def test_a_name_of_full_length_works(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 252 + ".cu")
    for text in ("first", "second"):
        write_file(file, text)
        assert file.read_text() == text


def test_symlinks_stay_and_their_targets_are_written(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    first, second = tmp_path / "first", tmp_path / "sub" / "second"
    first.symlink_to("sub/second")
    second.symlink_to("../target")
    write_file(first, "text")
    assert first.is_symlink()
    assert second.is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_devices_and_pipes_are_written_in_place(tmp_path: Path) -> None:
    device, link, fifo = tmp_path / "null", tmp_path / "link", tmp_path / "fifo"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # not /dev/null itself, which a mistake would replace
    except PermissionError:
        pytest.skip("no right to make a device")
    link.symlink_to(device)
    write_file(link, "text")
    assert stat.S_ISCHR(device.stat().st_mode)
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    write_file(fifo, "text")
    reader.join()
    assert read == ["text"]
    refuse_existing([device, link, fifo], force=False)


def test_an_open_descriptor_is_written_where_it_stands(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from evoengine.system.files import write_file\n"
        "print('before'); write_file(Path('/dev/stdout'), 'text\\n'); print('after')"
    )
    for out in (tmp_path / "file").open("w"), subprocess.PIPE:
        done = subprocess.run([sys.executable, "-c", script], stdout=out, text=True, check=True)
        text = done.stdout if out is subprocess.PIPE else (tmp_path / "file").read_text()
        assert text == "before\ntext\nafter\n"


def test_the_standard_output_needs_no_force_wherever_the_shell_sends_it(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from evoengine.system.files import names_stdout, refuse_existing\n"
        "names = [Path('-'), Path('/dev/stdout'), Path('/dev/fd/1')]\n"
        "refuse_existing(names, force=False)\n"
        "print([names_stdout(name) for name in [*names, Path('/dev/stderr'), Path('file')]])"
    )
    with (tmp_path / "file").open("w") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert (tmp_path / "file").read_text() == "[True, True, True, False, False]\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/x.cu", "folder"),
        ("loop", "symbolic links"),
        ("loop/x.cu", "symbolic links"),
        (".", "directory"),
        ("n" * 256, "too long"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=words) as caught:
        write_file(tmp_path / name, "text")
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["loop"]


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--force"):
        refuse_existing([tmp_path / "file"], force=False)
    refuse_existing([tmp_path / "file"], force=True)
    with pytest.raises(UsageError, match="too long"):
        refuse_existing([tmp_path / ("n" * 256)], force=False)


def test_a_database_is_not_overwritten(tmp_path: Path) -> None:
    file, link = tmp_path / "board.db", tmp_path / "link"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE rows (x)")
    link.symlink_to(file)
    before = file.read_bytes()
    for path in (file, link):
        with pytest.raises(UsageError, match="is a database"):
            write_file(path, "text")
        with pytest.raises(UsageError, match="is a database"):
            refuse_existing([path], force=True)
    assert file.read_bytes() == before


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("exists", [True, False])
def test_what_sqlite_keeps_beside_a_database_is_not_overwritten(tmp_path: Path, suffix: str, *, exists: bool) -> None:
    database, file, link = tmp_path / "board.db", tmp_path / f"board.db{suffix}", tmp_path / "link.html"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE rows (x)")
    if exists:
        file.write_bytes(b"rows")
    link.symlink_to(file)
    for path in (file, link):
        with pytest.raises(UsageError, match=r"database board\.db"):
            write_file(path, "text")
        with pytest.raises(UsageError, match=r"database board\.db"):
            refuse_existing([path], force=True)
    assert (file.read_bytes() if exists else file.exists()) == (b"rows" if exists else False)
    for name in (f"other.db{suffix}", suffix):
        write_file(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "text"
