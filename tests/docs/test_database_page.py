"""docs/database.md names every table and column of a leaderboard, and its Python reads one."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evoengine.leaderboard.store import Leaderboard
from tests.cli.calling import ROOT
from tests.report.boards import L4, fill

PAGE = (ROOT / "docs" / "database.md").read_text("utf-8")


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, set[str]]:
    """Columns of each table and view of a new file."""
    with Leaderboard(tmp_path / "leaderboard.db") as board:
        fill(board, L4)
    with closing(sqlite3.connect(tmp_path / "leaderboard.db")) as file:
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        return {name: {row[1] for row in file.execute(f"PRAGMA table_info({name})")} for name in names}


def documented(name: str) -> set[str]:
    """Columns that the page lists for a table or view."""
    rows = re.findall(rf"^\| `{name}` \|(.*)\n((?:\| \|.*\n)*)", PAGE, re.MULTILINE)
    if rows:  # a line, or some, of a table about several tables
        ((first, others),) = rows
        cells = [line.strip().strip("|").split("|")[0] for line in (first, *others.replace("| |", "").splitlines())]
    else:
        section = re.search(rf"^##+ .*`{name}`.*\n((?:.*\n)*?)(?=^#|\Z)", PAGE, re.MULTILINE)
        assert section is not None, name
        cells = re.findall(r"^\| (`.*?) \|", section[1], re.MULTILINE)
    return {column for cell in cells for column in re.findall(r"`(\w+)`", cell)}


def test_every_table_and_column_is_described(tables: dict[str, set[str]]) -> None:
    assert len(tables) >= 10
    for name, columns in tables.items():
        assert documented(name) == columns, name


BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("tables")
def test_its_plain_python_reads_a_leaderboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[1].replace("1x2x128x64-fp16", "1x8x512x64-fp16"), {})
    assert capsys.readouterr().out.splitlines()[0] == "(2, 4.5, 64)", "rank 1 is of another family"


def test_its_line_of_pandas_reads_the_view(
    tables: dict[str, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(BLOCKS[0], found)
    assert set(found["rows"].columns) == tables["ranking"]
