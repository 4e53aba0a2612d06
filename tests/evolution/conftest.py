"""Fixtures of the command line, and one evolution that several tests read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import Done, environment
from tests.cli.conftest import cache, evo, quick_evo
from tests.evolution.weakened import BAD, weakened

__all__ = ["cache", "evo", "quick_evo"]

EVOLVE = (
    *("evolve", "--family", "scalar", "--problem", "1x1x16x32", "--device", "emulator", "--seed", "6"),
    *("--operator", "recorded,crossover", "--patches", str(BAD), "--candidates", "2", "--workers", "2"),
    *("--db", "board.db"),
)
BUDGET = 9


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, Done]:
    """Folder and output of an evolution of the weakened family; its templates are in ``data``."""
    folder = tmp_path_factory.mktemp("evolved")
    data = weakened(folder / "data")
    done = subprocess.run(
        [sys.executable, "-m", "evoengine", *EVOLVE, "--budget", str(BUDGET), "--json"],
        cwd=folder,
        env={**environment(cache), "EVOENGINE_DATA": str(data)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return folder, Done(done.returncode, done.stdout, done.stderr)
