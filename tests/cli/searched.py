"""A small search on the emulator that runs once for all tests which only read its outputs or copy its leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.cli.calling import SMALL_SEARCH, Done, environment
from tests.made_once import made_once
from tests.warm import WarmPython

BUDGET: Final = 2


def call(warm: WarmPython, folder: Path, cache: Path, *arguments: str) -> Done:
    """Calls the command line in a folder, in which it keeps its state, too."""
    settings = {**environment(cache), "XDG_STATE_HOME": str(folder / "state")}
    return warm.run("evoengine", arguments, folder, settings)


def small_search(warm: WarmPython, shared_cache: Path) -> Path:
    """Returns a folder in which a search ran, and ran again with its budget used up; all processes share it.

    Args:
        warm: Starts the search.
        shared_cache: Cache folder of this test run.
    """

    def search(folder: Path) -> None:
        words = (*SMALL_SEARCH, "--budget", str(BUDGET), "--no-starts")
        first = call(warm, folder, shared_cache, *words, "--verbose", "--log", "log.jsonl")
        assert first.code == 0, first
        (folder / "err.txt").write_text(first.err)
        (folder / "out.txt").write_text(first.out)
        again = call(warm, folder, shared_cache, *words, "--quiet")
        assert (again.code, again.err) == (0, "")

    return made_once(shared_cache.parent / "small-search", search)
