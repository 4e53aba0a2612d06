"""Compile cache: hits, damaged entries, a full or read-only disk, concurrent writers."""

from __future__ import annotations

import errno
import hashlib
import logging
import multiprocessing
import os
import subprocess
import sys
import zlib
from dataclasses import replace
from multiprocessing.synchronize import Event as EventType
from pathlib import Path

import pytest

from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import DiskCache, default_cache_dir, usable_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from tests.kernel.families import ROOT, render, write_family

PARTS = (b"cubin" * 1000, b"", b"log")


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_shared_folder_is_named_by_a_variable_and_its_entries_are_readable_as_the_umask_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOENGINE_CACHE", str(tmp_path / "shared"))
    folder = usable_cache_dir()
    assert folder is not None
    assert folder.parent == tmp_path / "shared"
    before = os.umask(0o027)
    try:
        DiskCache(folder).put("ab12", PARTS)
    finally:
        os.umask(before)
    (entry,) = entries(tmp_path)
    assert entry.stat().st_mode & 0o777 == 0o640
    assert DiskCache(default_cache_dir()).get("ab12") == PARTS


def test_a_folder_in_the_home_of_an_unknown_user_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOENGINE_CACHE", "~no-such-user/cache")
    with pytest.raises(UsageError, match="EVOENGINE_CACHE is ~no-such-user/cache"):
        default_cache_dir()


def test_a_second_compile_is_read_from_disk(tmp_path: Path) -> None:
    write_family(tmp_path)
    source = render(tmp_path)
    first = Compiler(tmp_path / "cache").compile(source, "sm_89")
    (entry,) = entries(tmp_path / "cache")
    assert Compiler(tmp_path / "cache").compile(source, "sm_89") == first
    marked = (first.cubin, f"{first.ptx}// from disk".encode(), first.log.encode())
    DiskCache(tmp_path / "cache").put(entry.name, marked)
    assert Compiler(tmp_path / "cache").compile(source, "sm_89").ptx.endswith("// from disk")


def test_the_key_covers_text_options_and_architecture(tmp_path: Path) -> None:
    write_family(tmp_path)
    compiler = Compiler(tmp_path / "cache")
    for values, arch in (({}, "sm_89"), ({}, "sm_86"), ({"FACTOR": 2}, "sm_89"), ({"REGISTERS": 64}, "sm_89")):
        compiler.compile(render(tmp_path, dict(values)), arch)
    capped = replace(render(tmp_path), maxrregcount=48)  # the same text
    compiler.compile(capped, "sm_89")
    assert len(entries(tmp_path / "cache")) == 5


def checked(raw: bytes) -> bytes:
    """An entry with these contents and a right checksum."""
    body = zlib.compress(raw)
    return b"EVO1" + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "short part", "short length"])
def test_a_damaged_entry_is_replaced(tmp_path: Path, damage: str) -> None:
    write_family(tmp_path)
    source = render(tmp_path)
    first = Compiler(tmp_path / "cache").compile(source, "sm_89")
    (entry,) = entries(tmp_path / "cache")
    data = entry.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    raw = zlib.decompress(data[36:])
    damaged = {"cut": data[:-7], "flip": bytes(flipped), "empty": b"", "foreign": b"x" * 99}
    damaged |= {"short part": checked(raw[:-7]), "short length": checked(raw[:5])}
    entry.write_bytes(damaged[damage])
    assert Compiler(tmp_path / "cache").compile(source, "sm_89") == first
    assert entry.read_bytes() == data


def test_round_trip(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    assert cache.get("ab12") is None
    cache.put("ab12", PARTS)
    assert cache.get("ab12") == PARTS
    assert DiskCache(None).get("ab12") is None


def test_a_full_disk_disables_the_cache_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    cache = DiskCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        cache.put("ab12", PARTS)
        cache.put("cd34", PARTS)
    assert [record.getMessage() for record in caplog.records] == [
        f"compile cache is off: {tmp_path}: No space left on device"
    ]
    assert cache.get("ab12") is None
    assert entries(tmp_path) == []


def test_compiling_works_without_a_writable_folder(tmp_path: Path) -> None:
    write_family(tmp_path)
    (tmp_path / "file").write_text("")
    binary = Compiler(tmp_path / "file" / "cache").compile(render(tmp_path), "sm_89")
    assert binary.cubin


def _write_often(folder: Path, fill: int, stop: EventType) -> None:
    cache = DiskCache(folder)
    while not stop.is_set():
        cache.put("ab12", (bytes([fill]) * 50_000, b"end"))


@pytest.mark.slow
def test_readers_get_complete_entries_during_writes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    writers = [context.Process(target=_write_often, args=(tmp_path, fill, stop), daemon=True) for fill in (1, 2, 3)]
    for writer in writers:
        writer.start()
    cache = DiskCache(tmp_path)
    seen = 0
    while seen < 60 and any(writer.is_alive() for writer in writers):
        parts = cache.get("ab12")
        if parts is None:
            assert seen == 0, "an existing entry must not vanish"
            continue
        assert len(parts[0]) == 50_000
        assert len(set(parts[0])) == 1
        assert parts[1] == b"end"
        seen += 1
    stop.set()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert seen == 60
    assert len(entries(tmp_path)) == 1


def test_processes_share_the_cache(tmp_path: Path) -> None:
    write_family(tmp_path)
    script = (
        "import sys, pathlib\n"
        "from evoengine.kernel.compile.compiler import Compiler\n"
        "from tests.kernel.families import render\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "print(Compiler(folder / 'cache').compile(render(folder), 'sm_89').code_hash)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    other = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=600)
    assert len(entries(tmp_path / "cache")) == 1
    assert Compiler(tmp_path / "cache").compile(render(tmp_path), "sm_89").code_hash == other.stdout.strip()
    assert len(entries(tmp_path / "cache")) == 1


def test_the_default_folder_uses_xdg_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir().parent == Path("/somewhere/evoengine")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir().parent.parent == Path("~/.cache").expanduser()
