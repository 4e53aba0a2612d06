"""A search with a space file: the leaderboard stores the file, and later verbs build its rows with it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.calling import ROOT, SMALL_SEARCH, Evo


@pytest.mark.slow
def test_rows_are_built_with_the_stored_space_file(evo: Evo, quick_evo: Evo, tmp_path: Path) -> None:
    text = (ROOT / "search_spaces" / "mma.toml").read_text()
    own = re.sub(r"(tunables\.MIN_CTAS\]\nkind = .*\nvalues =) .*", r"\1 [5]", text)
    assert own != text
    own = re.sub(r"MIN_CTAS = \d", "MIN_CTAS = 5", own)  # the starts name it too
    (tmp_path / "own.toml").write_text(own)
    assert evo(*SMALL_SEARCH, "--space", "own.toml", "--no-starts", "--budget", "1", "-q").code == 0
    row = quick_evo("leaderboard", "--json").json()[0]
    assert row["config"]["MIN_CTAS"] == 5

    (tmp_path / "own.toml").unlink()
    done = quick_evo("export", "--best", "-o", "best.cu")
    assert done.code == 0, done.err
    assert "MIN_CTAS = 5" in (tmp_path / "best.cu").read_text()
    assert quick_evo("profile", str(row["id"]), "--ptx").out.count(".entry evo_attention") == 1

    with closing(sqlite3.connect(tmp_path / "leaderboard.db")) as connection, connection:
        connection.execute("UPDATE evo_studies SET spaces_json = NULL")  # as before version 6
    without = quick_evo("export", "--best", "-o", "old.cu")
    assert without.code == 2
    assert "--space FILE" in without.err
    assert not (tmp_path / "old.cu").exists()
    (tmp_path / "own.toml").write_text(own)
    assert quick_evo("export", "--best", "-o", "old.cu", "--space", "own.toml").code == 0

    other = quick_evo(
        "export", "--best", "-o", "best.cu", "--space", str(ROOT / "search_spaces" / "wmma.toml"), "--force"
    )
    for fact in ("wmma", "is of mma", "--space"):
        assert fact in other.err
    missing = quick_evo("export", "--best", "-o", "best.cu", "--space", "none.toml", "--force")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "none.toml" in missing.err


def test_a_space_file_names_its_family_itself(quick_evo: Evo, tmp_path: Path) -> None:
    text = (ROOT / "search_spaces" / "scalar.toml").read_text()
    (tmp_path / "own.toml").write_text(text)
    done = quick_evo("space", "--space", "own.toml", "--problem", "1x2x128x64", "--json")
    assert (done.code, done.json()["family"]) == (0, "scalar"), done.err
    other = quick_evo("space", "--space", "own.toml", "--family", "mma")
    assert (other.code, "own.toml is a space of family scalar, not of 'mma'" in other.err) == (2, True)
