"""Racing: the bound against exact probabilities, and the rate of false drops under noise that breaks its assumption."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from evoengine.bench.racing import BaselineSpeed, Race, RaceRule, lower_bound
from tests.bench.noise import LUCK, MODELS, ROUNDS, NoiseModel, drops

RUNS = 400


def test_the_bound_is_a_sample_and_grows_with_confidence() -> None:
    samples = [float(us) for us in np.random.default_rng(0).permutation(30)]
    bounds = [lower_bound(samples, confidence) for confidence in (0.5, 0.9, 0.99, 0.9999)]
    assert all(bound in samples for bound in bounds)
    assert bounds == sorted(bounds, key=lambda bound: -(bound or 0))
    assert lower_bound(samples[:7], 0.99) is None
    assert lower_bound(samples[:8], 0.99) == min(samples[:8])


def test_the_bound_is_wrong_at_most_as_often_as_its_confidence_allows() -> None:
    """Exact probability over all 2^16 equally likely ways in which 16 samples fall around the median."""
    wrong = 0
    for above in itertools.product((0.0, 1.0), repeat=16):
        bounds = (lower_bound(above[:count], 0.9) for count in range(1, 17))
        wrong += any(bound == 1.0 for bound in bounds)  # the median lies between 0 and 1
    assert 0.02 < wrong / 2**16 <= 0.1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.every(2)
def test_near_elites_are_measured_in_full_under_any_noise(name: str) -> None:
    for slower in (0.0, 0.03, 0.05):
        dropped = sum(map(bool, drops(MODELS[name], slower, RUNS, seed=1)))
        assert dropped / RUNS <= 0.01


def test_the_margin_itself_is_kept_where_samples_are_independent() -> None:
    """A candidate exactly at the margin, which includes the luck of the best time."""
    for name in ("quiet", "loud", "tails"):
        dropped = sum(map(bool, drops(MODELS[name], 1.10 * LUCK - 1, 3 * RUNS, seed=2)))
        assert dropped / (3 * RUNS) <= 0.01


@pytest.mark.parametrize("name", MODELS)
def test_slow_candidates_are_dropped_early(name: str) -> None:
    found = drops(MODELS[name], 1.0, RUNS, seed=3)
    assert min(found) >= 8
    assert sum(count or ROUNDS for count in found) / RUNS < 10


def test_without_the_baseline_a_slow_gpu_would_drop_the_best() -> None:
    """Only the correction by the baseline keeps the candidate in the race."""
    slow = [1.15] * ROUNDS
    assert Race(RaceRule(), LUCK, None).judge(slow) is not None
    assert Race(RaceRule(), LUCK, 2.0).judge(slow, [2.3] * ROUNDS) is None
    fast = [us * 0.5 for us in slow]
    assert Race(RaceRule(), LUCK, 2.0).judge([1.5] * 9, [1.0] * 9) is not None, (
        "a fast baseline slows no candidate down"
    )
    assert Race(RaceRule(), LUCK, None).judge(fast) is None


def test_a_drop_states_its_evidence() -> None:
    drop = Race(RaceRule(), 5.0, None).judge([6.0, 6.1, 5.9, 6.2, 6.0, 6.0, 6.1, 50.0])
    assert drop is not None
    assert re.findall(r"[\d.]+", str(drop)) == ["18", "5.00", "99", "8"], "slower by, best time, confidence, samples"


def test_a_race_starts_only_with_a_best_time_and_a_measured_baseline() -> None:
    assert BaselineSpeed(None).race(5.0, has_baseline=False) is None
    pacemaker = BaselineSpeed(RaceRule())
    assert pacemaker.race(None, has_baseline=False) is None
    assert pacemaker.race(5.0, has_baseline=False) == Race(RaceRule(), 5.0, None)
    assert pacemaker.race(5.0, has_baseline=True) is None, "nothing is known of the baseline yet"
    for median_us in (9.5, 9.0, 9.8):
        pacemaker.observe([median_us] * 7)
    assert pacemaker.race(5.0, has_baseline=True) == Race(RaceRule(), 5.0, 9.0)


def test_the_noise_models_differ() -> None:
    """The simulated noise has the properties that its fields name; otherwise the test above proves little."""
    assert NoiseModel("x").sigma > 0
    assert len({model.doc for model in MODELS.values()}) == len(MODELS)
    loud, quiet = (sum(map(bool, drops(MODELS[name], 0.15, RUNS, seed=4))) for name in ("loud", "quiet"))
    assert loud < quiet
