"""The expected error of the latency model: its correction on a problem that no fit has used, and its covariance."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from evoengine.costmodel.forecast import EXECUTED_SHARE, AnalyticForecast
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config, Evaluation, Problem
from evoengine.space.loader import find_space
from evoengine.statistics import rank_correlation
from evoengine.target import Target, get_target

SAMPLES = Path(__file__).resolve().parents[2] / "docs/results/samples"
SAMPLE = SAMPLES / "4x16x729x72b-all-h200.landscape.xz"
JUDGED = ("1x16k4x512x128cb", "1x64k8x512x64cb", "4x32k8x1x128kv3000b", "5x7x450x104")
H100, H200 = get_target("h100-sxm"), get_target("h200")


@pytest.fixture(scope="module")
def judged() -> Landscape:
    """A sample of a problem whose key has an odd hash."""
    return read_landscape(SAMPLE)


def of_family(landscape: Landscape, family: str) -> list[Evaluation]:
    return [one for one in landscape.evaluations if one.ok and one.config.family == family]


def figures(sample: Landscape, family: str, target: Target, *, corrected: bool) -> tuple[float, float, float]:
    """Median error, scatter of the logarithms and negative rank correlation of a family: less is better."""
    problem, ok = sample.problem, of_family(sample, family)
    assert problem is not None
    measured = np.array([median_us(one) for one in ok])
    forecast = AnalyticForecast(find_space(family), problem, target, corrected=corrected)
    times = forecast.us_of([one.config for one in ok])
    ratios = times / measured
    return float(np.median(abs(ratios - 1))), float(np.log(ratios).std()), -(rank_correlation(times, measured) or 0)


@pytest.mark.parametrize(
    ("family", "target", "names"),
    [
        ("mma", H100, [f"{name}-all-h100" for name in JUDGED]),
        ("wgmma", H100, [f"{name}-all-h100" for name in JUDGED]),
        ("wmma", H200, [f"{name}-wmma-h200" for name in ("2x12x64x64", "3x16x64x64", "8x8x32x64")]),
    ],
)
def test_the_correction_helps_on_problems_without_measurements(family: str, target: Target, names: list[str]) -> None:
    """Problems whose keys have an odd hash, of which no file was used for the fit."""
    samples = [read_landscape(SAMPLES / f"{name}.landscape.xz") for name in names]
    plain, corrected = (
        np.mean([figures(sample, family, target, corrected=on) for sample in samples], axis=0) for on in (False, True)
    )
    assert (corrected < plain).all(), (plain, corrected)


def test_other_architectures_are_not_corrected(judged: Landscape) -> None:
    problem, config = Problem(1, 8, 512, 64), of_family(judged, "mma")[0].config
    for target, same in ((H200, False), (H200.compiled_for("sm_89"), True), (get_target("l4"), True)):
        times = {AnalyticForecast(find_space("mma"), problem, target, corrected=on).us(config) for on in (False, True)}
        assert (len(times) == 1) is same, target.arch


def test_known_resources_replace_the_estimate(judged: Landscape) -> None:
    problem, one = Problem(8, 16, 1024, 64), of_family(judged, "mma")[0]
    forecast = AnalyticForecast(find_space("mma"), problem, H200)
    assert one.resources is not None
    lean, fat = (dataclasses.replace(one.resources, registers=count, spill_bytes=0) for count in (64, 255))
    times = [float(forecast.us_of([one.config], [resources])[0]) for resources in (lean, fat)]
    assert times[0] != times[1]


def test_an_executed_kernel_keeps_a_part_of_its_difference_from_the_forecast(judged: Landscape) -> None:
    problem, one = Problem(1, 8, 512, 64), of_family(judged, "mma")[0]
    space, resources, config = find_space("mma"), one.resources, one.config
    assert resources is not None
    plain_us = AnalyticForecast(space, problem, H200, corrected=False).us_of([config], [resources]).item()
    forecast = AnalyticForecast(space, problem, H200)

    def us(ratio: float, config: Config) -> float:
        return ratio * plain_us * forecast.correction(config, resources, ratio * plain_us)

    assert us(1, config) == pytest.approx(forecast.us_of([config], [resources]).item())
    assert us(1.1, config) / us(1, config) == pytest.approx(1.1**EXECUTED_SHARE)
    assert us(2, config) / us(1.5, config) == pytest.approx(2 / 1.5), "other code: more apart than is usual"
    variant = Config.of("mma~e0a1", config.as_dict())
    assert us(1.1, variant) / us(1, variant) == pytest.approx(1.1)


def test_errors_of_near_configs_agree_more(judged: Landscape) -> None:
    problem = Problem(1, 8, 512, 64)
    space = find_space("mma").build(problem, H200)
    first = space.starts()[0]
    store = {"STORE_OP": "streaming" if first["STORE_OP"] == "plain" else "plain"}
    near = Config.of("mma", first.as_dict() | store)
    far = space.starts()[5]
    covariance = AnalyticForecast(find_space("mma"), problem, H200).error_covariance([first, near, far])
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
    deviations = np.sqrt(np.diag(covariance))
    correlation = covariance / deviations / deviations[:, None]
    assert correlation[0, 1] > 0.9 > correlation[0, 2]
