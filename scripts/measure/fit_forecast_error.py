#!/usr/bin/env python3
"""Fits the distribution of the latency model's errors on measured landscapes; needs no GPU.

    python scripts/measure/fit_forecast_error.py *.landscape.xz --out evoengine/costmodel/forecast_error.json
    python scripts/measure/fit_forecast_error.py *.landscape.xz --left-out

The logarithm of measured over predicted time of a config is a linear function of features
(evoengine.costmodel.error_features). Each problem has its own weights, drawn from a normal distribution whose mean and
standard deviations are fitted by expectation maximisation. The predictions are those of the package without its
correction, with registers and spills as recorded. ``--left-out`` fits without one problem at a time and prints how well
each is predicted by the fit on the others. Landscapes of the same problem count as one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import common
import numpy as np

from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.costmodel.forecast_error import ErrorModel
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.space.language.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.statistics import rank_correlation
from evoengine.target import Target

FAMILIES: Final = ("mma", "wgmma", "hopper")
LAUNCH_FEATURES: Final = (
    *("BLOCK_M", "resident", "together", "warps", "fill", "wave_fill", "partial_rows", "partial_keys", "spills"),
    *("BLOCK_N^2", "BLOCK_M^2", "warps^2", "BLOCK_N*BLOCK_M"),
)
"""Features of every family, beside its tunables. None says how large a problem is: that would be extrapolated."""
MOST: Final = 400
"""Maximum number of configs of one problem and family that a fit uses, drawn with a fixed seed."""
FEWEST: Final = 20
"""Minimum number of configs of a problem: recordings with fewer were cut off and left out of the fit."""
MEAN_SPREAD: Final = {"mma": 0.06, "wgmma": 0.01, "hopper": 0.005}
"""Standard deviation of the mean weights before any measurement, chosen with ``--left-out``."""
FIRST_SPREAD: Final = 0.03
"""Standard deviation of the weights between problems at which the iteration begins."""
PRIOR_SPREAD: Final = 0.01
"""The same, as one further problem that every fit includes."""
FIRST_ERROR: Final = 0.06
LEAST_ERROR: Final = 0.02
"""Lower limit of the standard deviation of the error that the features do not explain: timing."""
ITERATIONS: Final = 40


@dataclass(frozen=True)
class Part:
    """Configs of one family for one problem."""

    problem: str
    family: str
    matrix: np.ndarray
    """Features, ``[configs, features]``."""
    predicted_us: np.ndarray
    measured_us: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Logarithms of measured over predicted time."""
        found: np.ndarray = np.log(self.measured_us / self.predicted_us)
        return found


def main() -> int:
    arguments = _arguments()
    landscapes = [*map(read_landscape, arguments.landscapes)]
    parts = _enough([part for landscape in landscapes for part in parts_of(landscape)])
    families = [name for name in FAMILIES if any(part.family == name for part in parts)]
    if arguments.left_out:
        judged = [one for name in families for one in _left_out(name, [part for part in parts if part.family == name])]
        _print_pooled(judged)
        return 0
    fits = {name: fit([part for part in parts if part.family == name]) for name in families}
    document = {
        "arch": arguments.arch,
        "gpu": ", ".join(sorted({landscape.device.name for landscape in landscapes})),
        "fitted_on": {name: sorted({part.problem for part in parts if part.family == name}) for name in families},
        "families": {name: _document(found) for name, found in fits.items()},
    }
    text = json.dumps(document, indent=1)
    if arguments.out is None:
        print(text)
    else:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    common.add_landscapes(parser)
    parser.add_argument("--arch", default="sm_90a", help="Architecture of the recorded kernels.")
    parser.add_argument("--left-out", action="store_true", help="Judge fits without one problem at a time.")
    return parser.parse_args()


# --- data -------------------------------------------------------------------------------------------------------------


def features_of(space: SearchSpace) -> tuple[str, ...]:
    """Features of a family: its tunables, the values of those without an order, and the properties of a launch."""
    found: list[str] = []
    for tunable in space.tunables:
        if all(isinstance(value, str) for value in tunable.values):
            found += [f"{tunable.name}={value}" for value in tunable.values[1:]]
        else:
            found.append(tunable.name)
    return (*dict.fromkeys([*found, *LAUNCH_FEATURES]),)


def parts_of(landscape: Landscape) -> list[Part]:
    """Configs of a landscape by family, with predictions that are not corrected; machine code twins count once."""
    problem, target = common.measured_on(landscape)
    found = []
    for family in FAMILIES:
        ok = [one for one in landscape.evaluations if one.ok and one.config.family == family]
        ok = [*{one.code_hash or one.config.key: one for one in ok}.values()]
        space = find_space(family)
        if ok and AnalyticForecast.covers(space, problem):
            found.append(_part(family, space, problem, target, ok))
    return found


def _enough(parts: Sequence[Part]) -> list[Part]:
    """Leaves out problems with few configs."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts[part.problem] += len(part.measured_us)
    return [part for part in parts if counts[part.problem] >= FEWEST]


def _part(family: str, space: SearchSpace, problem: Any, target: Target, ok: Sequence[Any]) -> Part:
    forecast = AnalyticForecast(space, problem, target, corrected=False)
    configs, resources = [one.config for one in ok], [one.resources for one in ok]
    predicted = forecast.us_of(configs, resources)
    matrix = forecast.features(configs, features_of(space), resources)
    usable = np.isfinite(predicted) & ~forecast.waits_for_dram(configs, resources)
    measured = np.array([median_us(one) for one in ok])
    return Part(problem.key, family, matrix[usable], predicted[usable], measured[usable])


# --- the fit ----------------------------------------------------------------------------------------------------------


def fit(parts: Sequence[Part]) -> ErrorModel:
    """Fits the weights of one family by expectation maximisation."""
    rng, mean_spread = np.random.default_rng(0), MEAN_SPREAD[parts[0].family]
    grouped: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for part in parts:
        taken = np.sort(rng.permutation(len(part.errors))[:MOST])
        grouped.setdefault(part.problem, []).append((part.matrix[taken], part.errors[taken]))
    problems = [tuple(map(np.concatenate, zip(*own, strict=True))) for own in grouped.values()]
    every = np.vstack([matrix for matrix, _ in problems])
    scale = np.sqrt(np.mean([matrix.var(0) for matrix, _ in problems], 0))
    start = ErrorModel(
        features=features_of(find_space(parts[0].family)),
        low=every.min(0),
        high=every.max(0),
        center=np.mean([matrix.mean(0) for matrix, _ in problems], 0),
        scale=np.where(scale > 1e-6, scale, np.inf),
        weights=np.zeros(every.shape[1] + 1),
        spread=np.full(every.shape[1] + 1, FIRST_SPREAD),
        own=FIRST_ERROR,
    )
    return _maximised(start, [(start.design(matrix), errors) for matrix, errors in problems], mean_spread)


def _maximised(start: ErrorModel, problems: Sequence[tuple[np.ndarray, np.ndarray]], mean_spread: float) -> ErrorModel:
    """Iterates between the weights of each problem and their distribution."""
    variance, own = start.spread**2, start.own**2
    weights, of_weights = start.weights, np.zeros((len(variance), len(variance)))
    squares = [design.T @ design for design, _ in problems]
    for _ in range(ITERATIONS):
        posteriors = [np.linalg.inv(square / own + np.diag(1 / variance)) for square in squares]
        precision, pull = np.eye(len(variance)) / mean_spread**2, np.zeros(len(variance))
        for (design, errors), square, posterior in zip(problems, squares, posteriors, strict=True):
            seen = design.T @ errors
            precision += square / own - square @ posterior @ square / own**2
            pull += seen / own - square @ posterior @ seen / own**2
        of_weights = np.linalg.inv(precision)
        weights = of_weights @ pull
        total, left, count = np.full(len(variance), PRIOR_SPREAD**2), 0.0, 0
        for (design, errors), square, posterior in zip(problems, squares, posteriors, strict=True):
            rest = errors - design @ weights
            own_weights = posterior @ (design.T @ rest) / own
            total += own_weights**2 + np.diag(posterior)
            unexplained = rest - design @ own_weights
            left += float(unexplained @ unexplained + np.trace(square @ posterior))
            count += len(errors)
        variance, own = total / (len(problems) + 1), max(left / count, LEAST_ERROR**2)
    spread = np.sqrt(variance + np.diag(of_weights))
    return replace(start, weights=weights, spread=spread, own=float(np.sqrt(own)))


def _document(found: ErrorModel) -> dict[str, Any]:
    """Coefficients of a family; features that never differed are left out."""
    columns = np.array([found.low, found.high, found.center, found.scale, found.weights[1:], found.spread[1:]]).T
    return {
        "own": round(found.own, 4),
        "constant": [round(float(found.weights[0]), 4), round(float(found.spread[0]), 4)],
        "features": {
            name: [float(f"{value:.4g}") for value in column]
            for name, column in zip(found.features, columns.tolist(), strict=True)
            if np.isfinite(column[3])
        },
    }


# --- judging ----------------------------------------------------------------------------------------------------------


def _left_out(family: str, parts: Sequence[Part]) -> list[tuple[Part, np.ndarray]]:
    """Fits without each problem and prints how well it is predicted; returns the parts with corrected predictions."""
    print(f"{family}: left out | configs | Spearman | error | scatter, each without and with correction | in 90 %")
    rows, judged = [], []
    for part in parts:
        others = [other for other in parts if other.problem != part.problem]
        if not others:
            continue
        found = fit(others)
        corrected = part.predicted_us * np.exp(found.correction(part.matrix))
        judged.append((part, corrected))
        rows.append([*_scores(part.predicted_us, part.measured_us), *_scores(corrected, part.measured_us)])
        rest = np.log(part.measured_us / corrected)
        within = np.abs(rest) < 1.64 * np.sqrt((found.loadings(part.matrix) ** 2).sum(1) + found.own**2)
        print(f"{part.problem:38s} {len(rest):5d} {_pairs(rows[-1])} {within.mean():.2f}", flush=True)
    print(f"{'mean':38s}       {_pairs(np.mean(rows, 0).tolist())}")
    return judged


def _print_pooled(judged: Sequence[tuple[Part, np.ndarray]]) -> None:
    """Prints the same figures for all families of a problem together."""
    print("all families of a problem")
    rows = []
    for problem in dict.fromkeys(part.problem for part, _ in judged):
        own = [(part, corrected) for part, corrected in judged if part.problem == problem]
        measured = np.concatenate([part.measured_us for part, _ in own])
        predicted = np.concatenate([part.predicted_us for part, _ in own])
        corrected_us = np.concatenate([corrected for _, corrected in own])
        rows.append([*_scores(predicted, measured), *_scores(corrected_us, measured)])
        print(f"{problem:38s} {len(measured):5d} {_pairs(rows[-1])}")
    print(f"{'mean':38s}       {_pairs(np.mean(rows, 0).tolist())}")


def _scores(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float, float]:
    spearman = rank_correlation(predicted, measured) or 0.0
    ratios = predicted / measured
    return spearman, float(np.median(np.abs(ratios - 1))), float(np.log(ratios).std())


def _pairs(row: Sequence[float]) -> str:
    half = len(row) // 2
    return "  ".join(f"{before:.3f} -> {after:.3f}" for before, after in zip(row[:half], row[half:], strict=True))


if __name__ == "__main__":
    common.run(main)
