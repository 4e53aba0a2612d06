"""``evolve`` with a model, end to end: a server plays mixed good and bad replies, and the tuned result is champion."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evoengine.evolution.llm.prompts import patch_text
from evoengine.evolution.operators.recorded import SHIPPED, load_patches
from evoengine.leaderboard.store import Leaderboard
from tests.cli.calling import Evo
from tests.evolution.chat_server import Served, chat_server, says
from tests.evolution.weakened import weakened

KEY = "sk-secret-0123456789abcdef"


def good_replies() -> list[str]:
    """The shipped improvements of the family, as a model would write them."""
    found = [one for one in load_patches(SHIPPED) if "scalar" in str(one)]
    return [f"Here is an idea.\n\n{patch_text(one.patch)}" for one in found]


def test_good_patches_of_a_model_are_found_and_accepted(
    evo: Evo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOENGINE_LLM_KEY", KEY)
    monkeypatch.setenv("EVOENGINE_DATA", str(weakened(tmp_path / "data")))
    replies = ["I would rather talk about something else.", *good_replies()]
    with chat_server(*map(says, replies)) as served:
        done = evo(
            *("evolve", "--family", "scalar", "--problem", "1x1x16x32", "--device", "emulator", "--workers", "2"),
            *("--operator", "patches", "--candidates", "1", "--accept", "0.004", "--budget", "4", "--db", "board.db"),
            *("--llm-url", served.url, "--llm-model", "stub", "--llm-calls", "12", "--json"),
        )
    assert done.code == 0, done.err
    result = done.json()
    tuned = [one for one in result["attempts"] if one["operator"] == "patches" and one["stage"] == "tuned"]
    assert tuned
    assert result["best"]["best_us"] < result["base_us"]
    assert result["champion"]["family"] == result["best"]["variant"]
    board = next(tmp_path.rglob("board.db"))
    with Leaderboard(board, create=False) as stored:
        transcripts = stored.transcripts()
    assert len(transcripts) == len(served.requests) <= 12
    assert {one["origin"] for one in tuned} <= {str(number) for number in transcripts}
    _check_prompts(served)
    assert all(KEY.encode() not in file.read_bytes() for file in board.parent.glob("board.db*"))
    assert KEY not in done.out + done.err


def _check_prompts(served: Served) -> None:
    first, second = served.prompts[:2]
    assert "1x1x16x32" in first
    assert "max_regs_per_thread" in first
    assert re.search(r"<data [0-9a-f]{12} FILE: scalar/kernel.cu.jinja, region [a-z ]+>", first)
    assert re.search(r"^\| \d+ \| \d+ \| \d+ \| \d+ \| .*kernel.cu.jinja", first, re.MULTILINE), "counters by line"
    assert "registers per thread" in first
    assert "no SEARCH/REPLACE block" in second, "the one repair turn says why"
