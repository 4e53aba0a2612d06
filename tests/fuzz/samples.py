"""A folder with one valid file of every kind that EvoEngine reads, most of them written by its own commands."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.api.boards import Entry, mma, store, wgmma
from tests.cli.calling import ROOT
from tests.landscape.making import RECORDED

BOARD: Final = "board.db"
"""A search on the emulator, with sources, a workload's study and imported configs."""
MEASURED: Final = "measured.db"
"""Rows as of an H200."""
LANDSCAPE: Final = "land.xz"
SPACE: Final = "space.toml"
WORKLOAD: Final = "workload.toml"
RBK: Final = "rbk_config.yaml"
LOCK: Final = "evoengine.lock"
SETTINGS: Final = "settings.toml"
_UNREADABLE: Final = "unreadable"

_WORKLOAD: Final = """\
name = "two"
[[problems]]
problem = "1x2x128x64"
weight = 2
[[problems]]
problem = "1x1x32x64"
window = [16, "inf"]
softcap = 30.0
dtype = "fp16"
"""
_RBK: Final = """\
shapes:
  - {batch_size: 1, num_heads: 2, seq_len: 128, head_dim: 64, causal: false, dtype: fp16, name: one}
  - {batch_size: 1, num_heads: 1, seq_len: 32, head_dim: 64}
save_json: true
save_csv: true
save_markdown: true
"""
_SETTINGS: Final = """\
db = "board.db"
quiet = false
[search]
budget = 2
starts = false
accept = 0.05
[leaderboard.show]
json = true
[leaderboard]
top = 3
"""

Call = Callable[..., None]
"""Runs one command in the folder; fails if the command does."""

_COMMANDS: Final[tuple[tuple[str, ...], ...]] = (
    ("search", "--device", f"replay:{LANDSCAPE}", "--budget", "6", "--db", BOARD, "--no-log", "--quiet"),
    *(
        ("leaderboard", "export", "--db", BOARD, "--device", "emulator", "--format", kind, "-o", f"rows.{kind}")
        for kind in ("json", "csv", "t4")
    ),
    ("leaderboard", "import", "rows.json", "--db", BOARD),
    ("landscape", "export", LANDSCAPE, "-o", "cache.json"),
    ("landscape", "export", LANDSCAPE, "-o", "land.t4.json", "--format", "t4"),
    ("lock", "-o", LOCK, "--db", MEASURED),
)
_SEARCH: Final = (
    *("search", "--device", "emulator", "--family", "mma", "--problem", "1x1x16x16", "--budget", "2", "--workers", "1"),
    *("--inputs-seed", "1", "--db", BOARD, "--no-log", "--quiet", "--strategy", "random"),
)


def make_samples(folder: Path, cache: Path, run: Call, run_alone: Call, board: Path | None = None) -> None:
    """Fills a folder.

    Args:
        folder: Empty folder.
        cache: Compile cache.
        run: Runs a command of :data:`_COMMANDS` in this process.
        run_alone: Runs a command in a process of its own, because it starts workers.
        board: Leaderboard of a search on the emulator to copy; without it, such a search runs.
    """
    shutil.copy(RECORDED, folder / LANDSCAPE)
    shutil.copy(ROOT / "search_spaces" / "scalar.toml", folder / SPACE)
    (folder / WORKLOAD).write_text(_WORKLOAD)
    (folder / RBK).write_text(_RBK)
    (folder / SETTINGS).write_text(_SETTINGS)
    from evoengine.model import Problem

    problem = Problem(1, 8, 512, 64)
    store(folder / MEASURED, cache, Entry(problem, mma()), Entry(problem, wgmma(), 6.0, crowned=False, arch="sm_90a"))
    if board is None:
        run_alone(folder, _SEARCH)
    else:
        shutil.copyfile(board, folder / BOARD)
    for words in _COMMANDS:
        run(folder, words)
    _add_oddities(folder)
    for name in (BOARD, MEASURED):
        _as_one_file(folder / name)


def _add_oddities(folder: Path) -> None:
    """Files and folders that are no input of any verb."""
    (folder / "notes.txt").write_text("not a database, but long enough to look like a file of some kind\n" * 20)
    (folder / "planned.xz.part").write_text("not the database of an unfinished recording\n" * 20)
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)) * 8)
    (folder / "folder.db").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    _write_unreadable(folder / _UNREADABLE)
    with closing(sqlite3.connect(folder / "foreign.db")) as connection, connection:
        connection.execute("CREATE TABLE cats (name TEXT)")
    record = {"format": "evoengine-selftest", "device": "none"}
    (folder / "selftest.jsonl").write_text(json.dumps(record) + "\n")


def _write_unreadable(path: Path) -> None:
    path.write_text("x")
    path.chmod(0)


def _as_one_file(path: Path) -> None:
    """Writes all pending content into the file itself."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copy_samples(samples: Path, folder: Path, names: Sequence[str] | None = None) -> None:
    """Copies the samples to a folder; links stay links."""
    for path in sorted(samples.iterdir()):
        if names is None or path.name in names:
            target = folder / path.name
            if path.is_symlink():
                target.symlink_to(path.readlink())
            elif path.is_dir():
                target.mkdir()
            elif path.name == _UNREADABLE:
                _write_unreadable(target)
            else:
                shutil.copyfile(path, target)
