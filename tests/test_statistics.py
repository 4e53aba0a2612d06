"""Statistics against scipy and against simulation."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import special

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.statistics import median_interval, paired_gain, rank_correlation, t_distribution, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 19, 30, 99])
def test_student_t_agrees_with_scipy(degrees: int) -> None:
    for t in (-2.0, 0.0, 0.3, 1.7, 12.0):
        assert t_distribution(t, degrees) == pytest.approx(special.stdtr(degrees, t), abs=1e-12)
    for probability in (0.6, 0.95, 0.975, 0.999):
        assert t_quantile(probability, degrees) == pytest.approx(special.stdtrit(degrees, probability), rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 10, 30, 31, 100])
def test_interval_ends_are_the_order_statistics_of_the_binomial(count: int) -> None:
    samples = [float(x) for x in np.random.default_rng(count).permutation(count)]
    interval = median_interval(samples)
    assert interval.median == statistics.median(samples)
    cut = int(interval.low)  # sample values are their own ranks
    assert interval.high == count - 1 - cut
    covered = 1 - 2 * special.bdtr(cut, count, 0.5)
    if count >= 6:
        assert covered >= 0.95
        assert 1 - 2 * special.bdtr(cut + 1, count, 0.5) < 0.95
    else:
        assert cut == 0


def test_interval_coverage_of_a_skewed_median() -> None:
    rng = np.random.default_rng(1)
    runs = [median_interval(list(rng.exponential(size=30))) for _ in range(2000)]
    covered = sum(run.low <= math.log(2) <= run.high for run in runs) / len(runs)
    assert 0.935 <= covered <= 0.98


def test_gain_of_exact_ratios() -> None:
    gain, low = paired_gain([9.0, 18.0, 4.5], [10.0, 20.0, 5.0])
    assert gain == pytest.approx(0.1)
    assert low == pytest.approx(0.1)


def test_gain_bound_agrees_with_scipy() -> None:
    rng = np.random.default_rng(2)
    champion = rng.uniform(5, 6, 20)
    challenger = champion * rng.normal(0.96, 0.03, 20)
    gain, low = paired_gain(list(challenger), list(champion))
    logs = np.log(challenger / champion)
    standard_error = logs.std(ddof=1) / math.sqrt(len(logs))
    upper = logs.mean() + special.stdtrit(len(logs) - 1, 0.95) * standard_error
    assert gain == pytest.approx(1 - np.exp(logs.mean()))
    assert low == pytest.approx(1 - np.exp(upper))


def test_statistics_refuse_empty_input() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="paired"):
        paired_gain([1.0, 2.0], [1.0])


def test_acceptance_needs_threshold_and_confidence() -> None:
    steady = judge_duel([9.0] * 6, [10.0] * 6)
    assert steady.accepted
    too_small = judge_duel([9.8] * 6, [10.0] * 6)
    assert not too_small.accepted
    assert too_small.low_gain > 0
    noisy = judge_duel([6.0, 14.0, 5.0, 15.0, 7.0, 9.0], [10.0] * 6)
    assert noisy.gain >= 0.03
    assert not noisy.accepted
    with pytest.raises(ValueError, match="at least 5 pairs"):
        judge_duel([9.0] * 4, [10.0] * 4)


def test_equal_kernels_rarely_replace_the_champion() -> None:
    rng = np.random.default_rng(3)
    wins = sum(judge_duel(list(rng.normal(10, 0.5, 20)), list(rng.normal(10, 0.5, 20))).accepted for _ in range(500))
    assert wins / 500 <= 0.05


def test_predictions_need_one_pair() -> None:
    assert judge_predictions(9.69, 10.0).accepted
    assert not judge_predictions(9.75, 10.0).accepted
    duel = judge_predictions(9.0, 10.0)
    assert duel.gain == duel.low_gain == pytest.approx(0.1)


def test_rank_correlation_by_hand() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, a**3) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    assert rank_correlation(a, np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([5.0, 6.0, 7.0])) == pytest.approx(3**0.5 / 2)
    assert rank_correlation(a, np.ones(4)) is None
