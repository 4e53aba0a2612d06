"""Sources: shared bodies are stored once, every source returns byte for byte."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import StoreError
from evoengine.leaderboard.sources import split_source
from evoengine.leaderboard.store import Leaderboard
from tests.leaderboard.test_leaderboard import evaluation, key

BODY = "\n\n".join(f"float part_{number}(float x)\n{{\n    return {number}.0f * x;\n}}" for number in range(900))
COMMENTS = "".join(f"    // constant {number} of the struct\n" for number in range(100))
TEXTS = ["a", "struct Cfg {\n};\n", "\n};\n" * 3, "é" * 5000, BODY, "};", f"struct Cfg {{\n}};\n{BODY}"]


def kernel(number: int, body: str = BODY) -> str:
    return f"// config {number} – ü\nstruct Cfg {{\n{COMMENTS}    static constexpr int N = {number};\n}};\n{body}"


def add(board: Leaderboard, number: int, text: str) -> int:
    return board.record(board.open_study(key()), replace(evaluation(number, 5.0), source=text))


@pytest.mark.parametrize("text", TEXTS)
def test_the_parts_join_to_the_source(text: str) -> None:
    assert b"".join(split_source(text.encode())) == text.encode()


def test_every_source_round_trips(tmp_path: Path) -> None:
    texts = [*TEXTS, *map(kernel, range(5)), kernel(7, "int another_body;")]
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        rows = [add(board, number, text) for number, text in enumerate(texts)]
        assert [board.get(row).evaluation.source for row in rows] == texts
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        assert [board.get(row).evaluation.source for row in rows] == texts
        assert board.get(add(board, 100, kernel(8))).evaluation.source == kernel(8), "the body is read from the file"


def test_a_body_is_stored_once_and_prologues_as_differences(tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as one, Leaderboard(one.url) as two:
        for number in range(10):
            add((one, two)[number % 2], number, kernel(number))
        with closing(sqlite3.connect(one.path)) as connection:
            templates = connection.execute("SELECT body_zlib FROM evo_templates").fetchall()
            prologues = connection.execute("SELECT length(prologue_zlib) FROM evo_sources").fetchall()
    assert [zlib.decompress(body).decode() for (body,) in templates] == [BODY]
    assert len(prologues) == 10
    assert max(prologues) < (100,)


def test_a_rolled_back_body_is_stored_with_the_next_source(tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        broken = replace(evaluation(1, 5.0), source=kernel(1), reason=object())  # type: ignore[arg-type]
        with pytest.raises(StoreError, match=r"board\.db"):
            board.record(board.open_study(key()), broken)
        assert board.get(add(board, 2, kernel(2))).evaluation.source == kernel(2)
