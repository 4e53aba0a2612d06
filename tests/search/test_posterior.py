"""The order of a family's configs by expected improvement, and what failures teach it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evoengine.model import Config, Status
from evoengine.search.strategies.feasibility import Feasibility
from evoengine.search.strategies.features import Encoding
from evoengine.search.strategies.posterior import COMPARED_EXACTLY, FamilyPosterior
from evoengine.search.strategies.registry import make_strategy
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space, true_us


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> ValidSpace:
    return build_space(Path(tmp_path_factory.mktemp("space")))


def needs_too_much(config: Config) -> bool:
    """A resource limit that no constraint states; about a third of the configs exceed it."""
    return int(config["TILE_M"]) * int(config["STAGES"]) * (2 if config["UNROLL"] else 1) > 256


@pytest.mark.parametrize("seed", range(4))
def test_configs_of_equal_promise_stay_in_their_order(space: ValidSpace, seed: int) -> None:
    """Two layouts that were never evaluated are equal to the model, however linear algebra rounds."""
    rng = np.random.default_rng(seed)
    axis = [tunable.name for tunable in space.tunables].index("LAYOUT")
    rows = space.diagram.rows(rng.choice(space.diagram.count, 300, replace=False))
    posterior = FamilyPosterior(space.tunables)
    for row in rows[rows[:, axis] == 0][:40]:
        posterior.learn(row, true_us(space.config_of(row)))
    twins = np.concatenate([rows[-90:], rows[-90:]])
    twins[:, axis] = np.repeat([1, 2], 90)
    mixed = np.unique(twins, axis=0)
    mixed = mixed[rng.permutation(len(mixed))]
    place = {row.tobytes(): index for index, row in enumerate(mixed)}
    best = posterior.best_first(posterior.conditioned([]), mixed, COMPARED_EXACTLY)
    ranks = {row.tobytes(): rank for rank, row in enumerate(best)}
    pairs = 0
    for row in best[best[:, axis] == 1]:
        twin = row.copy()
        twin[axis] = 2
        if twin.tobytes() in ranks:
            pairs += 1
            first, second = row.tobytes(), twin.tobytes()
            assert (place[first] < place[second]) == (ranks[first] < ranks[second])
    assert pairs >= 20


def test_differences_between_fast_configs_count_more(space: ValidSpace) -> None:
    """The same ratio of two times is a larger difference to the model near the fastest time than at twice that time."""
    rng = np.random.default_rng(0)
    rows = space.diagram.rows(rng.choice(space.diagram.count, 40, replace=False))
    posterior = FamilyPosterior(space.tunables)
    times_us = np.concatenate([[1.0, 1.1, 2.0, 2.2], rng.uniform(1.0, 2.2, 26), rng.uniform(2.2, 9.0, 10)])
    for row, us in zip(rows, times_us, strict=True):
        posterior.learn(row, us)
    fast, less_fast, slow, slower = posterior.conditioned([]).mean(Encoding(space.tunables).features(rows[:4]))
    assert less_fast - fast > 2 * (slower - slow) > 0


def test_failures_predict_failures(space: ValidSpace) -> None:
    """Share of pairs of a failing and a working config, none of them evaluated, of which the right one is preferred."""
    rng = np.random.default_rng(0)
    rows = space.diagram.rows(rng.choice(space.diagram.count, 260, replace=False))
    fails = np.array([needs_too_much(space.config_of(row)) for row in rows])
    encoding = Encoding(space.tunables)
    features = encoding.features(rows)
    model = Feasibility(encoding)
    assert model.probability(features).tolist() == [1.0] * len(rows)
    for feature, failed in zip(features[:60], fails[:60], strict=True):
        model.learn(feature, works=not failed)
    probability = model.probability(features[60:])
    assert probability.min() > 0
    working, failing = probability[~fails[60:]], probability[fails[60:]]
    assert (working[:, None] > failing).mean() > 0.95


def test_a_warm_up_learns_to_avoid_failures(space: ValidSpace) -> None:
    """Share of failures among the first fourteen proposals, where two thirds of the configs fail."""
    limit = np.quantile([int(config["TILE_M"]) * int(config["STAGES"]) for config in space], 0.35)
    failed = []
    for seed in range(16):
        strategy = make_strategy("evolution:warm_up=20", space, seed)
        for _ in range(14):
            proposal = strategy.ask()
            assert proposal is not None
            failed.append(int(proposal.config["TILE_M"]) * int(proposal.config["STAGES"]) > limit)
            if failed[-1]:
                strategy.tell(proposal, None, Status.RESOURCE_LIMIT)
            else:
                strategy.tell(proposal, true_us(proposal.config), Status.OK)
    assert np.mean(failed) < 0.4


def test_the_first_configs_are_less_extreme_than_what_fills_the_space(space: ValidSpace) -> None:
    """Share of tunables at an end of their values, in the first four proposals and the next ones, without outcomes."""
    last = np.array([len(tunable.values) - 1 for tunable in space.tunables])
    longer = last > 1
    first: list[float] = []
    next_ones: list[float] = []
    for seed in range(40):
        strategy = make_strategy("evolution", space, seed)
        for number in range(12):
            proposal = strategy.ask(12)
            assert proposal is not None
            row = space.row_of(proposal.config)
            assert row is not None
            at_an_end = ((row == 0) | (row == last))[longer].mean()
            (first if number < 4 else next_ones).append(float(at_an_end))
    assert np.mean(first) < np.mean(next_ones) - 0.05


def test_a_search_learns_to_avoid_failures(space: ValidSpace) -> None:
    share = np.mean([needs_too_much(config) for config in space])
    failed = []
    for seed in range(2):
        strategy = make_strategy("evolution", space, seed)
        for number in range(60):
            proposal = strategy.ask()
            assert proposal is not None
            fails = needs_too_much(proposal.config)
            # Fast near the limit, so that the model of times alone would cross it.
            us = true_us(proposal.config) / int(proposal.config["TILE_M"]) / int(proposal.config["STAGES"])
            strategy.tell(proposal, None if fails else us, Status.LAUNCH_FAILED if fails else Status.OK)
            if number >= 20:
                failed.append(fails)
    assert np.mean(failed) < share / 2
