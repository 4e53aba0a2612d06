"""The expected error of the latency model: its correction on a problem that no fit has used, and its covariance."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config, Evaluation, Problem
from evoengine.space.language.loader import find_space
from evoengine.statistics import rank_correlation
from evoengine.target import get_target

SAMPLE = Path(__file__).resolve().parents[2] / "docs/results/samples/4x16x729x72b-all-h200.landscape.xz"
H200 = get_target("h200")


@pytest.fixture(scope="module")
def judged() -> Landscape:
    """A sample of a problem whose key has an odd hash."""
    return read_landscape(SAMPLE)


def of_family(landscape: Landscape, family: str) -> list[Evaluation]:
    return [one for one in landscape.evaluations if one.ok and one.config.family == family]


@pytest.mark.parametrize("family", ["mma", "wgmma"])
def test_the_correction_helps_on_a_problem_without_measurements(judged: Landscape, family: str) -> None:
    problem, ok = judged.problem, of_family(judged, family)
    assert problem is not None
    configs, measured = [one.config for one in ok], np.array([median_us(one) for one in ok])
    plain, corrected = (
        AnalyticForecast(find_space(family), problem, H200, corrected=on).us_of(configs) for on in (False, True)
    )
    errors = [float(np.median(abs(times / measured - 1))) for times in (plain, corrected)]
    assert errors[1] < max(errors[0], 0.1), "an error of less than a tenth is within the spread between problems"
    assert (rank_correlation(corrected, measured) or 0) > (rank_correlation(plain, measured) or 0) - 0.01
    scatter = [np.log(times / measured).std() for times in (plain, corrected)]
    assert scatter[1] < scatter[0]


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
