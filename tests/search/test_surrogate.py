"""The Gaussian process, compared with the textbook formulas."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from evoengine.search.strategies.features import LEVELS, Encoding
from evoengine.search.strategies.surrogate import Floats, GaussianProcess, Hyper, expected_improvement, fit
from evoengine.space.index_rows import IndexRows
from evoengine.space.tunables import Ordinal
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space, true_us


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> ValidSpace:
    return build_space(Path(tmp_path_factory.mktemp("space")))


def thresholds(first: Ordinal, second: Ordinal) -> list[float]:
    """Thresholds between the products of two tunables' positive values."""
    products = sorted({math.log2(int(a) * int(b)) for a in positive(first) for b in positive(second)})
    distinct = [products[0]] + [b for a, b in itertools.pairwise(products) if b - a > 1e-6]
    between = [(a + b) / 2 for a, b in itertools.pairwise(distinct)]
    chosen = sorted({round(at) for at in np.linspace(0, len(between) - 1, LEVELS)})
    return [between[at] for at in chosen] if len(between) > LEVELS else between


def positive(tunable: Ordinal) -> list[float]:
    """Values of a tunable, with 0 as half of the least other."""
    values = [float(value) for value in tunable.values]
    return [value or min(v for v in values if v) / 2 for value in values]


def covariance(space: ValidSpace, hyper: Hyper, first: IndexRows, second: IndexRows) -> Floats:
    """Covariances entry by entry: linear in thermometers and choices, exponential in weighted steps."""
    linear, rough, _ = np.exp(hyper.rest)
    ordinals = {axis: tunable for axis, tunable in enumerate(space.tunables) if isinstance(tunable, Ordinal)}
    pairs = [(i, j, thresholds(a, b)) for (i, a), (j, b) in itertools.combinations(ordinals.items(), 2)]
    result = np.zeros((len(first), len(second)))
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            product = steps = 0.0
            for tunable, weight, x, y in zip(space.tunables, np.exp(hyper.weights[:-1]), a, b, strict=True):
                if isinstance(tunable, Ordinal):
                    unit = weight / math.sqrt(len(tunable.values) - 1)
                    product += unit * min(x, y)
                    steps += unit * abs(int(x) - int(y))
                else:
                    product += 0.5 * weight * (x == y)
                    steps += weight * (x != y)
            for m, n, levels in pairs:
                unit = 0.3 * math.exp(hyper.weights[-1]) / math.sqrt(len(levels))
                above = [
                    sum(
                        math.log2(positive(ordinals[m])[row[m]] * positive(ordinals[n])[row[n]]) > level
                        for level in levels
                    )
                    for row in (a, b)
                ]
                product += unit * min(above)
                steps += unit * abs(above[0] - above[1])
            result[i, j] = linear * product + rough * math.exp(-steps)
    return result


def test_mean_and_deviation_follow_the_textbook(space: ValidSpace) -> None:
    rng = np.random.default_rng(0)
    rows = space.diagram.rows(rng.integers(space.diagram.count, size=24))
    values = rng.normal(size=16)
    encoding = Encoding(space.tunables)
    hyper = Hyper(rng.normal(-1, 0.5, encoding.weights), np.log([0.4, 0.7, 0.05]))
    known, asked = rows[:16], rows[16:]
    model = GaussianProcess.of(encoding, hyper, encoding.features(known), values)
    mean, deviation = model.predict(encoding.features(asked))
    noisy = covariance(space, hyper, known, known) + 0.05 * np.eye(16)
    cross = covariance(space, hyper, asked, known)
    own = covariance(space, hyper, asked, asked)
    assert mean == pytest.approx(cross @ np.linalg.solve(noisy, values), rel=1e-3, abs=1e-4)
    variance = np.diag(own - cross @ np.linalg.solve(noisy, cross.T))
    assert deviation == pytest.approx(np.sqrt(variance), rel=1e-3)


def test_configs_in_flight_change_the_deviation_and_not_the_mean(space: ValidSpace) -> None:
    rng = np.random.default_rng(1)
    encoding = Encoding(space.tunables)
    features = encoding.features(space.diagram.rows(rng.integers(space.diagram.count, size=40)))
    hyper = Hyper.prior(encoding.weights)
    values = rng.normal(size=20)
    model = GaussianProcess.of(encoding, hyper, features[:20], values)
    extended = model.with_predicted(features[20:25])
    observed = GaussianProcess.of(encoding, hyper, features[:25], np.append(values, model.predict(features[20:25])[0]))
    assert extended.predict(features)[0] == pytest.approx(model.predict(features)[0], abs=1e-5)
    assert extended.predict(features)[1] == pytest.approx(observed.predict(features)[1], rel=1e-4)


def test_an_extended_process_equals_one_made_at_once(space: ValidSpace) -> None:
    rng = np.random.default_rng(3)
    encoding = Encoding(space.tunables)
    features = encoding.features(space.diagram.rows(rng.integers(space.diagram.count, size=60)))
    hyper = Hyper.prior(encoding.weights)
    values = rng.normal(size=40)
    whole = GaussianProcess.of(encoding, hyper, features[:40], values)
    grown = GaussianProcess.of(encoding, hyper, features[:0], values[:0])
    for place in range(40):
        grown = grown.with_predicted(features[place : place + 1])
    for one, other in zip(grown.with_values(values).predict(features), whole.predict(features), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_fitted_weights_predict_better_than_the_prior(space: ValidSpace) -> None:
    rng = np.random.default_rng(2)
    rows = space.diagram.rows(rng.integers(space.diagram.count, size=400))
    log_us = np.log([true_us(space.config_of(row)) for row in rows])
    values = (log_us - log_us[:120].mean()) / log_us[:120].std()
    encoding = Encoding(space.tunables)
    features = encoding.features(rows)
    errors = []
    for hyper in (Hyper.prior(encoding.weights), fit(encoding, features[:120], values[:120])):
        model = GaussianProcess.of(encoding, hyper, features[:120], values[:120])
        errors.append(float(np.mean((model.predict(features[120:])[0] - values[120:]) ** 2)))
    assert errors[1] < errors[0] < 1


def test_expected_improvement_is_its_closed_form() -> None:
    mean, deviation = np.array([0.0, 1.0, -2.0, 3.0]), np.array([1.0, 0.5, 2.0, 0.1])
    z = (0.3 - mean) / deviation
    expected = deviation * (z * ndtr(z) + np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    assert expected_improvement(mean, deviation, 0.3) == pytest.approx(expected, abs=1e-6)
