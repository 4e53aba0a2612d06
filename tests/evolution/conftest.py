"""Fixtures of the command line, and one evolution that several tests read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli.calling import Done, environment
from tests.cli.conftest import cache, evo, evo_in, quick_evo
from tests.evolution.weakened import BAD, weakened
from tests.made_once import made_once
from tests.warm import WarmPython

__all__ = ["cache", "evo", "evo_in", "quick_evo"]

# One candidate, the parent's best config, so that what is found again does not hang on the search's random candidates.
# Each of the two improvements gains less than what is needed to be champion, which takes an inspection; both gain more.
EVOLVE = (
    *("evolve", "--family", "scalar", "--problem", "1x1x16x32", "--device", "emulator", "--seed", "6"),
    *("--operator", "recorded,crossover", "--patches", str(BAD), "--candidates", "1", "--workers", "2"),
    *("--accept", "0.05", "--db", "board.db"),
)
BUDGET = 9


@pytest.fixture(scope="session")
def evolved(cache: Path, warm: WarmPython) -> tuple[Path, Done]:
    """Folder and output of an evolution of the weakened family; its templates are in ``data``.

    The workers of pytest-xdist share one run.
    """
    folder = made_once(cache.parent / "evolved", partial(_evolve, cache, warm))
    answer = json.loads((folder / "answer.json").read_text())
    return folder, Done(answer["code"], answer["out"], answer["err"])


def _evolve(cache: Path, warm: WarmPython, folder: Path) -> None:
    words = (*EVOLVE, "--budget", str(BUDGET), "--json")
    settings = {**environment(cache), "EVOENGINE_DATA": str(weakened(folder / "data"))}
    done = warm.run("evoengine", words, folder, settings, timeout_s=900)
    answer = {"code": done.code, "out": done.out, "err": done.err}
    (folder / "answer.json").write_text(json.dumps(answer))
