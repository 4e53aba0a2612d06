"""Prior knowledge: all of it in a search, none in a replay unless it is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import evoengine
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.priors import Priors
from evoengine.engine.search_plan import make_plan
from evoengine.landscape.file import read_landscape
from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.report.command import search_command
from evoengine.search.strategies.registry import make_strategy

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "landscape" / "mma-1x2x128x64-l4-predicted.landscape.xz"
NAMES = ("starts", "forecast", "transfer", "skip")
COUNT = 30


def searched(folder: Path, **options: object) -> list[Config]:
    """The configs of a replay, in order."""
    request = SearchOptions(
        device=f"replay:{RECORDED}", strategy="random", budget=COUNT, db=str(folder / "replay.db"), seed=7
    )
    request = replace(request, **options)  # type: ignore[arg-type]
    evoengine.search(make_plan(request).problem, request)
    with Leaderboard(f"sqlite:///{request.db}", create=False) as board:
        study = board.studies()[-1]
        return [entry.evaluation.config for entry in board.evaluations(study)]


def alone(**options: object) -> list[Config]:
    """The configs that the strategy proposes by itself, as in scripts/measure/strategy_benchmark.py."""
    landscape = read_landscape(RECORDED)
    strategy = make_strategy("random", landscape.spaces, 7)
    found = []
    for _ in range(COUNT):
        proposal = strategy.ask()
        assert proposal is not None
        outcome = landscape.by_config[proposal.config]
        strategy.tell(proposal, outcome.value_us, outcome.status)
        found.append(proposal.config)
    return found


def test_a_replay_is_the_strategy_alone(tmp_path: Path) -> None:
    assert searched(tmp_path) == alone()


def test_a_prior_that_is_asked_for_begins_the_replay(tmp_path: Path) -> None:
    (first, *_) = read_landscape(RECORDED).spaces.starts()
    assert first not in alone()[:1]
    assert searched(tmp_path, starts=True)[0] == first


def test_replays_with_and_without_priors_never_continue_each_other(tmp_path: Path) -> None:
    searched(tmp_path)
    searched(tmp_path, starts=True)
    with Leaderboard(f"sqlite:///{tmp_path / 'replay.db'}", create=False) as board:
        bare, helped = board.studies()
        assert [board.evaluated(study) for study in (bare, helped)] == [COUNT, COUNT]
        assert len({row.device for row in board.rows(RowFilter())}) == 2, "and are ranked apart"
    assert search_command(helped, COUNT) == f"{search_command(bare, COUNT)} --starts"


@pytest.mark.parametrize("device", ["cuda", "emulator"])
def test_a_search_uses_what_it_knows(device: str) -> None:
    kind = "cuda" if device == "cuda" else "emulator"
    assert Priors.of(SearchOptions(), kind).on == NAMES  # type: ignore[arg-type]
    some = Priors.of(SearchOptions(transfer=False, skip=True), kind)  # type: ignore[arg-type]
    assert (some.on, some.off) == (("starts", "forecast", "skip"), ("transfer",))


def test_a_replay_uses_only_what_is_asked_for() -> None:
    assert Priors.of(SearchOptions(), "replay").off == NAMES
    assert Priors.of(SearchOptions(forecast=True, starts=False), "replay").on == ("forecast",)
