"""``evolve`` with a model, end to end: a server plays mixed good and bad replies, and the tuned result is champion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evoengine.evolution.llm.prompts import patch_text
from evoengine.evolution.operators.recorded import SHIPPED, load_patch
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Edit, Patch
from tests.cli.calling import Evo
from tests.evolution.chat_server import Cassette, Served, chat_server, says
from tests.evolution.weakened import BAD, REMOVED, weakened

KEY = "sk-secret-0123456789abcdef"
LINE = "    float maximum = stream.maximum;\n"
FOUND = REMOVED[:1]
"""Improvements that the model proposes, before it repeats the parent."""
PROSE = "I would rather talk about something else."


def null(number: int) -> Patch:
    """The parent, with a comment."""
    edit = Edit("scalar/kernel.cu.jinja", LINE, f"{LINE}    // the parent {number}\n")
    return Patch((edit,), summary=f"the parent, with comment {number}")


NULLS = (null(1), null(2))


class Model:
    """Answers each first prompt for a patch with a mistake, and its repair with an improvement; then with the parent.

    Prompts for configs get an unknown tunable, and the parent's own config.
    """

    def __init__(self) -> None:
        good = [patch_text(load_patch(SHIPPED / f"{name}.toml").patch) for name in FOUND] + [*map(patch_text, NULLS)]
        bad = [patch_text(load_patch(BAD / f"{name}.toml").patch) for name in ("unknown-name", "doubled-sum")]
        self.replies = [text for pair in zip([PROSE, *bad], good, strict=True) for text in pair]

    def __call__(self, body: Mapping[str, Any]) -> Cassette:
        if "configs that may be faster" in body["messages"][-1]["content"]:
            return says('[{"NO_SUCH": 1}, {}]')
        return says(self.replies.pop(0) if self.replies else f"Here it is.\n\n{patch_text(NULLS[-1])}")


@pytest.mark.thorough
def test_good_patches_of_a_model_are_found_and_accepted(
    evo: Evo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOENGINE_LLM_KEY", KEY)
    monkeypatch.setenv("EVOENGINE_DATA", str(weakened(tmp_path / "data")))
    with chat_server(Model()) as served:
        done = evo(
            *("evolve", "--family", "scalar", "--problem", "1x1x16x32", "--device", "emulator", "--workers", "2"),
            *("--operator", "patches,configs", "--candidates", "1", "--accept", "0.004", "--budget", "5"),
            *("--llm-url", served.url, "--llm-model", "stub", "--llm-calls", "20", "--llm-price", "1,4"),
            *("--db", "board.db", "--json"),
        )
    assert done.code == 0, done.err
    result = done.json()
    tuned = [one for one in result["attempts"] if one["operator"] == "patches" and one["stage"] == "tuned"]
    assert len(tuned) == len(FOUND)
    assert result["best"]["best_us"] < result["base_us"]
    assert result["champion"]["family"] == result["best"]["variant"]
    (refused,) = [one for one in result["attempts"] if one["operator"] == "configs"]
    assert (refused["stage"], "NO_SUCH" in refused["reason"]) == ("reply", True)
    for patch in NULLS:
        (same,) = [one for one in result["attempts"] if one["summary"] == patch.summary]
        assert same["stage"] == "novelty"
        assert "machine code" in same["reason"]
    board = next(tmp_path.rglob("board.db"))
    with Leaderboard(board, create=False) as stored:
        transcripts = stored.transcripts()
    assert len(transcripts) == len(served.requests) <= 20
    assert {one["origin"] for one in tuned} <= {str(number) for number in transcripts}
    spent = result["model"]
    assert (spent["calls"], spent["tokens"]) == (len(transcripts), 60 * len(transcripts))
    assert spent["money"] == pytest.approx(sum(one.price or 0.0 for one in transcripts.values()))
    _check_prompts(served)
    assert all(KEY.encode() not in file.read_bytes() for file in board.parent.glob("board.db*"))
    assert KEY not in done.out + done.err


def _check_prompts(served: Served) -> None:
    patches = [prompt for prompt in served.prompts if "# Source" in prompt]
    first, after_prose, _, after_compiler, _, after_gate = patches[:6]
    assert "1x1x16x32" in first
    assert "max_regs_per_thread" in first
    assert re.search(r"<data [0-9a-f]{12} FILE: scalar/kernel.cu.jinja, region [a-z ]+>", first)
    assert re.search(r"^\| \d+ \| \d+ \| \d+ \| \d+ \| .*kernel.cu.jinja", first, re.MULTILINE), "counters by line"
    assert re.search(r"<data [0-9a-f]{12} report of ptxas>\n.*Used \d+ registers", first, re.DOTALL)
    assert "no SEARCH/REPLACE block" in after_prose, "the one repair turn says why"
    assert 'KEYS_OF_A_STEP"' in after_compiler.partition("# Why it was rejected")[2], "the compiler's message"
    assert "parity_failed" in after_gate.partition("# Why it was rejected")[2], "the gate's message"
    configs = next(prompt for prompt in served.prompts if prompt not in patches)
    assert "Constraints:" in configs
