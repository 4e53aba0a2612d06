"""The stored lineage of candidates, compared with their configs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from evoengine.leaderboard.lineage import Kin
from evoengine.leaderboard.records import LeaseStatus, Record
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Provenance, Status
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.registry import make_strategy
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import true_us
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, open_search, study_key

pytestmark = pytest.mark.slow

BUDGET = 70
MOVES = {"start", "random sample", "one change", "linked changes", "crossover"}


@pytest.fixture(scope="module")
def records(space: ValidSpace, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Records of a complete search, oldest first."""
    path = tmp_path_factory.mktemp("board") / "leaderboard.db"
    with Leaderboard(f"sqlite:///{path}") as board:
        settings = SearchSettings(budget=BUDGET, seed=3)
        search, study = open_search(board, space, settings, SyntheticCompiler(), SyntheticExaminer())
        search.run()
        return [board.get(stored.id) for stored in board.evaluations(study)]


def changed(one: Kin, other: Kin) -> set[str]:
    return {name for name, value in one.config.items() if other.config[name] != value}


def test_every_candidate_has_a_provenance(records: list[Record]) -> None:
    moves = {record.lineage[0].descent.move for record in records if record.lineage[0].descent is not None}
    assert len(records) == BUDGET
    assert all(record.lineage[0].descent is not None for record in records)
    assert {"random sample", "one change"} <= moves
    assert all(set(move.split(", then ")) <= MOVES for move in moves)


def test_parents_are_older_and_match_the_move(records: list[Record]) -> None:
    one_change = 0
    for record in records:
        child, by_id = record.lineage[0], {kin.id: kin for kin in record.lineage}
        descent = child.descent
        assert descent is not None
        assert len(child.parents) == len(descent.parents), "all parents are in the study"
        assert all(parent < child.id for parent in child.parents)
        assert bool(child.parents) != descent.move.startswith(("start", "random sample"))
        if descent.move == "one change":
            assert len(changed(child, by_id[child.parents[0]])) == 1
            one_change += 1
    assert one_change


def test_a_crossover_has_two_parents_the_more_similar_first(space: ValidSpace) -> None:
    """Crossovers are rarely selected: several searches are made, beginning with a seed that has one."""
    for seed in range(13, 53):
        strategy = make_strategy("evolution", space, seed)
        by_key: dict[str, Config] = {}
        for _ in range(60):
            proposal = strategy.ask()
            assert proposal is not None
            assert proposal.provenance is not None
            child = proposal.config
            by_key[child.key] = child
            if proposal.provenance.move == "crossover":
                first, second = (by_key[key] for key in proposal.provenance.parents)
                assert all(value in (first[name], second[name]) for name, value in child.values)
                apart = [sum(value != parent[name] for name, value in child.values) for parent in (first, second)]
                assert apart[0] <= apart[1]
                return
            strategy.tell(proposal, true_us(child), Status.OK)
    raise AssertionError("no crossover in 40 searches")


def test_a_lineage_ends_at_candidates_without_parents(records: list[Record]) -> None:
    deepest = max(records, key=lambda record: record.lineage[-1].generation)
    kin = {one.id: one for one in deepest.lineage}
    assert deepest.lineage[0].id == deepest.row.id
    assert [one.generation for one in deepest.lineage] == sorted(one.generation for one in deepest.lineage)
    assert deepest.lineage[-1].generation >= 2
    assert {parent for one in kin.values() for parent in one.parents} == set(kin) - {deepest.row.id}
    assert len(kin) == len(deepest.lineage), "no row twice"


def test_a_resumed_candidate_keeps_its_provenance(space: ValidSpace, tmp_path: Path) -> None:
    """The lease of a killed search names the parents, which the search that takes it over does not know."""
    url = f"sqlite:///{tmp_path / 'leaderboard.db'}"
    settings = SearchSettings(budget=12, seed=3)
    with Leaderboard(url) as board:
        study = board.open_study(study_key(settings, space))
        config = space.config_of(space.diagram.rows(np.array([5]))[0])
        descent = Provenance("crossover", ("unknown", "here"))
        assert board.acquire_lease(study, config, 12, 0, descent) is LeaseStatus.GRANTED
        with closing(sqlite3.connect(tmp_path / "leaderboard.db")) as other, other:
            other.execute("UPDATE evo_claims SET owner = 'elsewhere:1:1:1'")
        search, _ = open_search(board, space, settings, SyntheticCompiler(), SyntheticExaminer())
        search.run()
        stored = {entry.evaluation.config: entry.id for entry in board.evaluations(study)}
        kin = board.get(stored[Config.of(config.family, config.as_dict())]).lineage
    assert kin[0].descent == descent
    assert len(kin) == 1
    assert kin[0].parents == (), "parents that are not stored are left out"
