"""Simulated samples of short graph replays on a GPU, for a candidate and the baseline beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.bench.racing import BaselineSpeed, Race, RaceRule

Series = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

ROUNDS: Final = 30
LUCK: Final = 0.99
"""The best time so far is the luckiest of many medians: 1 % below what its kernel takes."""


@dataclass(frozen=True)
class NoiseModel:
    """Deviations of samples from the kernel's time, all as shares of that time."""

    doc: str
    sigma: float = 0.01
    """Standard deviation of single samples."""
    memory: float = 0.0
    """Autocorrelation of that scatter from round to round."""
    outliers: float = 0.0
    """Share of samples that are delayed, by up to several times their length."""
    clock_sigma: float = 0.0
    """Standard deviation of the GPU's clock, which candidate and baseline share (autocorrelation 0.95)."""
    drift: float = 0.0
    """Linear slow-down of the GPU over the rounds."""
    step: float = 0.0
    """Sudden slow-down of the GPU in a random round."""
    was_faster: float = 0.0
    """Share by which the GPU was faster when the best time was measured than ever in this process."""


MODELS: Final[Mapping[str, NoiseModel]] = {
    "quiet": NoiseModel("1 % scatter"),
    "loud": NoiseModel("4 % scatter", sigma=0.04),
    "tails": NoiseModel("one sample in eight is held up", outliers=0.125),
    "drift": NoiseModel("the GPU gets 6 % slower meanwhile", drift=0.06),
    "step": NoiseModel("the GPU gets 15 % slower at once", step=0.15),
    "wander": NoiseModel("the clock wanders by 2 %", clock_sigma=0.02),
    "memory": NoiseModel("scatter of 2 % has a memory of 0.8", sigma=0.02, memory=0.8),
    "faster": NoiseModel("the GPU was 4 % faster when the best was measured", was_faster=0.04),
    "all": NoiseModel("tails, drift, wander, memory", 0.015, 0.6, 0.1, 0.01, 0.03),
}


def _remembering(rng: np.random.Generator, shape: tuple[int, int], sigma: float, memory: float) -> Series:
    """An AR(1) process along the last axis, stationary."""
    fresh = rng.standard_normal(shape) * sigma
    series = fresh.copy()
    for turn in range(1, shape[1]):
        series[:, turn] = memory * series[:, turn - 1] + np.sqrt(1 - memory**2) * fresh[:, turn]
    return series


def simulate(model: NoiseModel, us: float, runs: int, rng: np.random.Generator) -> tuple[Series, Series]:
    """Samples ``[runs, ROUNDS]`` of a candidate that takes ``us``, and of a baseline that takes 2."""
    shape = (runs, ROUNDS)
    clock = np.exp(_remembering(rng, shape, model.clock_sigma, 0.95))
    clock *= 1 + model.drift * np.linspace(0, 1, ROUNDS)
    if model.step:
        clock *= 1 + model.step * (np.arange(ROUNDS) >= rng.integers(0, ROUNDS, (runs, 1)))
    both = []
    for time_us in (us, 2.0):
        samples = time_us * clock * np.exp(_remembering(rng, shape, model.sigma, model.memory))
        held_up = rng.random(shape) < model.outliers
        both.append(samples * np.where(held_up, 1 + 0.2 * (1 + rng.pareto(1.5, shape)), 1.0))
    return both[0], both[1]


def races(model: NoiseModel, rule: RaceRule, rng: np.random.Generator) -> Race:
    """Starts a race in a process that measured five other candidates in full before the GPU got slower."""
    pacemaker = BaselineSpeed(rule)
    _, baselines = simulate(replace(model, drift=0.0, step=0.0), 1.0, 5, rng)
    for baseline in baselines:
        pacemaker.observe(baseline.tolist())
    race = pacemaker.race(LUCK / (1 + model.was_faster), has_baseline=True)
    assert race is not None
    return race


def drops(model: NoiseModel, slower: float, runs: int, seed: int, rule: RaceRule | None = None) -> list[int]:
    """Returns the number of samples after which a candidate slower by a share is dropped; 0 if it is not dropped."""
    rng = np.random.default_rng([seed, *map(ord, model.doc)])
    race = races(model, rule or RaceRule(), rng)
    own, baseline = simulate(model, 1 + slower, runs, rng)
    found = []
    for samples, rival in zip(own.tolist(), baseline.tolist(), strict=True):
        lengths = range(1, ROUNDS + 1)
        found.append(next((n for n in lengths if race.judge(samples[:n], rival[:n]) is not None), 0))
    return found
