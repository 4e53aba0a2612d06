"""Noise model: size, reproducibility, and drift that is shared by the two measurements of a pair."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from evoengine.landscape.noise import DRIFT_PERIOD, Noise
from evoengine.landscape.synthetic import null_landscape
from evoengine.model import Config, Duel
from evoengine.search.replay import PAIRS, ReplayService
from tests.landscape.making import config, toy


def test_scatter_has_the_given_sigma() -> None:
    logs = [math.log(factor) for factor in Noise(0.02, seed=3).scatter(20_000, "some config")]
    assert statistics.fmean(logs) == pytest.approx(0, abs=0.0006)
    assert statistics.stdev(logs) == pytest.approx(0.02, rel=0.02)


def test_scatter_follows_from_seed_and_config() -> None:
    first = Noise(0.01, seed=1).scatter(3, "a")
    assert first.tolist() == Noise(0.01, seed=1).scatter(3, "a").tolist()
    assert first.tolist() != Noise(0.01, seed=1).scatter(3, "b").tolist()
    assert first.tolist() != Noise(0.01, seed=2).scatter(3, "a").tolist()


def test_drift_is_a_slow_wave_with_the_given_amplitude() -> None:
    wave = [Noise(0.0, 0.02, seed=5).drifted(step) for step in range(int(DRIFT_PERIOD) + 1)]
    assert max(wave) == pytest.approx(math.exp(0.02), rel=1e-3)
    assert min(wave) == pytest.approx(math.exp(-0.02), rel=1e-3)
    assert wave[0] == pytest.approx(wave[-1])
    assert max(abs(a - b) for a, b in zip(wave[1:], wave[:-1], strict=True)) < 0.001


def _duel(noise: Noise, ours: Config, theirs: Config) -> Duel:
    landscape = toy()
    service = ReplayService(landscape, noise, 0.03)
    challenger, champion = (service.build(one).candidate for one in (ours, theirs))
    assert challenger is not None
    assert champion is not None
    return service.challenge(challenger, champion)


def test_drift_cancels_in_a_duel_and_noise_does_not() -> None:
    fast, slow = config(16, "padded", True), config(16, "plain", False)
    drifting = _duel(Noise(0.0, 0.2, seed=1), fast, slow)
    assert len(drifting.challenger_us) == len(drifting.champion_us) == PAIRS
    assert len(set(drifting.challenger_us)) == PAIRS
    ratios = [a / b for a, b in zip(drifting.challenger_us, drifting.champion_us, strict=True)]
    assert ratios == pytest.approx([0.8] * PAIRS)
    assert drifting.accepted
    assert drifting.gain == pytest.approx(0.2)
    noisy = _duel(Noise(0.02, seed=1), fast, slow)
    assert noisy.accepted
    spread = [math.log(a / b) for a, b in zip(noisy.challenger_us, noisy.champion_us, strict=True)]
    assert statistics.stdev(spread) == pytest.approx(0.02 * math.sqrt(2), rel=0.5)


def test_equal_kernels_do_not_replace_each_other() -> None:
    same = config(16, "padded", True), config(32, "plain", False)
    assert not _duel(Noise(0.02, 0.02, seed=2), *same).accepted


def test_noise_shifts_a_measurement_and_its_interval() -> None:
    landscape = null_landscape(9)
    one = landscape.evaluations[0]
    candidate = ReplayService(landscape).build(one.config).candidate
    assert candidate is not None
    quiet = ReplayService(landscape).examine(candidate, None)
    assert quiet.timing == one.timing
    noisy = ReplayService(landscape, Noise(0.05, seed=1)).examine(candidate, None)
    assert noisy.timing is not None
    assert noisy.timing.median_us != 10.0
    assert noisy.timing.low_us < noisy.timing.median_us < noisy.timing.high_us
    assert noisy.timing == replace(noisy.timing, predicted=False, method="synthetic")
