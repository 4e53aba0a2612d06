"""The comparison of times with and without faults detects slowdowns and ignores drift and noise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from evoengine.model import Config, Evaluation, Status, Timing
from tests.faults.comparison import spread, within_noise

Rows = dict[Config, Evaluation]


def rows(us_of: Callable[[int], float], baseline_us: float | None = 8.0, count: int = 100) -> Rows:
    """Good candidates with their times and interleaved baselines."""
    made = {}
    for serial in range(count):
        us = us_of(serial)
        timing = Timing(us, us, us, predicted=baseline_us is None, method="any", baseline_us=baseline_us)
        config = Config.of("faulty", {"SERIAL": serial})
        made[config] = Evaluation(config=config, status=Status.OK, timing=timing)
    return made


def noisy(seed: int, share: float, factor: float = 1.0) -> Callable[[int], float]:
    """Times of 2 us with relative noise of up to `share`."""
    rng = random.Random(seed)
    return lambda _: 2.0 * factor * (1 + rng.uniform(-share, share))


def verdict(disturbed: Rows, clean: Rows, again: Rows) -> bool:
    """The rule as the fault injection applies it."""
    return within_noise(spread(disturbed, clean, to_baseline=True), spread(again, clean, to_baseline=True))


def test_the_spread_of_hand_made_ratios() -> None:
    found = spread(rows(lambda serial: 2.0 + 0.02 * serial), rows(lambda _: 2.0), to_baseline=False)
    assert (found.kernels, found.same) == (100, 1)
    assert (found.median, found.p5, found.p95, found.off95) == pytest.approx((1.495, 1.05, 1.95, 0.95))


def test_noise_alone_passes() -> None:
    assert verdict(rows(noisy(1, 0.02)), rows(noisy(2, 0.02)), rows(noisy(3, 0.02)))
    assert verdict(rows(noisy(1, 0.10)), rows(noisy(2, 0.10)), rows(noisy(3, 0.10)))


def test_a_slowdown_of_candidates_and_baseline_passes() -> None:
    slower = rows(noisy(1, 0.01, factor=1.2), baseline_us=8.0 * 1.2)
    clean, again = rows(noisy(2, 0.01)), rows(noisy(3, 0.01))
    assert verdict(slower, clean, again)
    assert not within_noise(spread(slower, clean, to_baseline=False), spread(again, clean, to_baseline=False))


def test_a_slowdown_of_good_candidates_fails() -> None:
    clean, again = rows(noisy(2, 0.01)), rows(noisy(3, 0.01))
    assert not verdict(rows(noisy(1, 0.01, factor=1.05)), clean, again)
    some = noisy(1, 0.01)
    assert not verdict(rows(lambda serial: some(serial) * (1.2 if serial % 10 == 0 else 1.0)), clean, again)


def test_predictions_must_be_the_same() -> None:
    clean = rows(noisy(1, 0.5), baseline_us=None)
    assert within_noise(spread(clean, clean, to_baseline=True), None)
    changed = rows(lambda serial: 3.0 if serial == 7 else 2.0, baseline_us=None)
    assert not within_noise(spread(changed, rows(lambda _: 2.0, baseline_us=None), to_baseline=True), None)


def test_searches_without_a_kernel_in_common_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="both"):
        spread({}, rows(lambda _: 2.0), to_baseline=True)
