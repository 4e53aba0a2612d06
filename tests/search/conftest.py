"""A leaderboard for each test, and the small space that most tests of the search use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evoengine.leaderboard.store import Leaderboard
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Leaderboard]:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as opened:
        yield opened


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> ValidSpace:
    return build_space(tmp_path_factory.mktemp("space"))
