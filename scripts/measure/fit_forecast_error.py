#!/usr/bin/env python3
"""Fits the distribution of the latency model's errors on measured landscapes; needs no GPU.

    python scripts/measure/fit_forecast_error.py *.landscape.xz --out evoengine/costmodel/forecast_error.json
    python scripts/measure/fit_forecast_error.py *.landscape.xz --left-out

The expected logarithm of measured over predicted time of a config is a sum of regression trees over features
(evoengine.costmodel.error_features), fitted by scikit-learn's gradient boosting. What it leaves on problems that were
held out is a linear function of the same features, whose weights each problem draws from a normal distribution with
mean 0; the deviations are fitted by expectation maximisation. The predictions are those of the package without its
correction, with registers and spills as recorded. ``--left-out`` fits without a quarter of the problems at a time and
prints how well each of these is predicted by the fit on the others. Landscapes of a problem are left out together.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import common
import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

from evoengine.costmodel.boosted_trees import BoostedTrees
from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.costmodel.forecast_error import ErrorModel
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.statistics import rank_correlation
from evoengine.target import Target

FAMILIES: Final = ("mma", "wgmma", "hopper", "wmma")
PROBLEM_FEATURES: Final = ("busy", "head_dim", "causal", "grouped", "decode", "split_rows")
"""Features that differ from problem to problem much more than within one: only trees use them."""
LAUNCH_FEATURES: Final = (
    *("BLOCK_M", "resident", "together", "warps", "fill", "wave_fill", "partial_rows", "partial_keys", "spills"),
    *("first_tile", *PROBLEM_FEATURES),
)
"""Features of every family, beside its tunables."""
MOST: Final = 400
"""Maximum number of configs of one problem and family that a fit uses, drawn with a fixed seed."""
FEWEST: Final = 20
"""Minimum number of configs of a problem: recordings with fewer were cut off and left out of the fit."""
BOOSTING: Final = {
    "n_estimators": 200,
    "learning_rate": 0.07,
    "max_depth": 5,
    "min_samples_leaf": 20,
    "subsample": 0.7,
    "max_features": 0.5,
}
"""Arguments of scikit-learn's GradientBoostingRegressor, chosen by problems of the fit that were left out."""
FAR_WEIGHT: Final = 0.2
"""Weight of a config far from the fastest of its problem; that one has 1 more."""
NEARNESS: Final = 3.0
"""Power of the ratio to the fastest time by which the weight falls."""
FOLDS: Final = 4
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
    text = _with_short_lists(document)
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


def _with_short_lists(document: Mapping[str, Any]) -> str:
    """JSON with a line for each innermost list."""
    text = json.dumps(document, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda found: json.dumps(json.loads(found[0])), text)


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
    """Fits the expected error of one family, and the distribution of what it leaves on problems of no fit."""
    parts = [_drawn(part) for part in parts]
    trees = fit_trees(parts)
    every = np.vstack([part.matrix for part in parts])
    scale = np.sqrt(np.mean([part.matrix.var(0) for part in parts], 0))
    features = features_of(find_space(parts[0].family))
    linear = (scale > 1e-6) & ~np.isin(features, PROBLEM_FEATURES)
    start = ErrorModel(
        features=features,
        low=every.min(0),
        high=every.max(0),
        center=np.mean([part.matrix.mean(0) for part in parts], 0),
        scale=np.where(linear, scale, np.inf),
        trees=trees,
        spread=np.full(every.shape[1] + 1, FIRST_SPREAD),
        own=FIRST_ERROR,
    )
    left = _left_by_others(parts)
    return _maximised(start, [(start.design(matrix), errors) for matrix, errors in left])


def _drawn(part: Part) -> Part:
    """At most :data:`MOST` of the configs."""
    taken = np.sort(np.random.default_rng(0).permutation(len(part.errors))[:MOST])
    return replace(
        part,
        matrix=part.matrix[taken],
        predicted_us=part.predicted_us[taken],
        measured_us=part.measured_us[taken],
    )


def fit_trees(parts: Sequence[Part]) -> BoostedTrees:
    """Fits the expected error by gradient boosting, with most weight on the fastest kernels of each problem."""
    model = GradientBoostingRegressor(**BOOSTING, random_state=0)
    weights = [
        (FAR_WEIGHT + (part.measured_us.min() / part.measured_us) ** NEARNESS) / np.sqrt(len(part.errors))
        for part in parts
    ]
    errors = np.concatenate([part.errors for part in parts])
    model.fit(np.vstack([part.matrix for part in parts]), errors, sample_weight=np.concatenate(weights))
    start = float(model.init_.constant_.item())
    trees = [_complete(tree.tree_, BOOSTING["max_depth"], model.learning_rate) for (tree,) in model.estimators_]
    return BoostedTrees(start, *map(np.array, zip(*trees, strict=True)))


def _complete(tree: Any, depth: int, rate: float) -> tuple[list[int], list[float], list[float]]:
    """Features, thresholds and scaled leaves of scikit-learn's tree as a complete one."""
    level, feature, threshold = [0], [], []
    for _ in range(depth):
        following = []
        for node in level:
            inner = tree.children_left[node] >= 0
            feature.append(int(tree.feature[node]) if inner else 0)
            threshold.append(float(tree.threshold[node]) if inner else 0.0)
            following += [int(tree.children_left[node]), int(tree.children_right[node])] if inner else [node, node]
        level = following
    return feature, threshold, [rate * float(tree.value[node].item()) for node in level]


def _left_by_others(parts: Sequence[Part]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and errors of each problem that trees leave which are fitted on other problems."""
    found = []
    for others, held in _folds(parts):
        trees = fit_trees(others)
        for problem in sorted({part.problem for part in held}):
            own = [part for part in held if part.problem == problem]
            matrix = np.vstack([part.matrix for part in own])
            found.append((matrix, np.concatenate([part.errors for part in own]) - trees(matrix)))
    return found


def _folds(parts: Sequence[Part]) -> Iterator[tuple[list[Part], list[Part]]]:
    """Yields the parts of most problems, and those of the others; each problem is once among the others."""
    problems = sorted({part.problem for part in parts})
    order = np.random.default_rng(0).permutation(len(problems))
    for fold in range(FOLDS):
        held = {problems[place] for place in order[fold::FOLDS]}
        yield [one for one in parts if one.problem not in held], [one for one in parts if one.problem in held]


def _maximised(start: ErrorModel, problems: Sequence[tuple[np.ndarray, np.ndarray]]) -> ErrorModel:
    """Fits the deviations of weights with mean 0 by expectation maximisation."""
    variance, own = start.spread**2, start.own**2
    squares = [design.T @ design for design, _ in problems]
    for _ in range(ITERATIONS):
        posteriors = [np.linalg.inv(square / own + np.diag(1 / variance)) for square in squares]
        total, left, count = np.full(len(variance), PRIOR_SPREAD**2), 0.0, 0
        for (design, errors), square, posterior in zip(problems, squares, posteriors, strict=True):
            weights = posterior @ (design.T @ errors) / own
            total += weights**2 + np.diag(posterior)
            unexplained = errors - design @ weights
            left += float(unexplained @ unexplained + np.trace(square @ posterior))
            count += len(errors)
        variance, own = total / (len(problems) + 1), max(left / count, LEAST_ERROR**2)
    return replace(start, spread=np.sqrt(variance), own=float(np.sqrt(own)))


def _document(found: ErrorModel) -> dict[str, Any]:
    """Coefficients of a family; features that never differed have no deviation."""
    spread = np.where(np.isfinite(found.scale), found.spread[1:], 0.0)
    columns = np.array([found.low, found.high, found.center, found.scale, spread]).T
    return {
        "own": round(found.own, 4),
        "constant": round(float(found.spread[0]), 4),
        "features": {
            name: [float(f"{value:.4g}") if np.isfinite(value) else 1e9 for value in column]
            for name, column in zip(found.features, columns.tolist(), strict=True)
        },
        "trees": {
            "start": round(found.trees.start, 5),
            "feature": found.trees.feature.tolist(),
            "threshold": [[float(f"{value:.6g}") for value in tree] for tree in found.trees.threshold.tolist()],
            "value": [[round(value, 5) for value in tree] for tree in found.trees.value.tolist()],
        },
    }


# --- judging ----------------------------------------------------------------------------------------------------------


def _left_out(family: str, parts: Sequence[Part]) -> list[tuple[Part, np.ndarray]]:
    """Predicts each problem by a fit on others and prints how well; returns the parts with corrected predictions."""
    print(f"{family}: left out | configs | Spearman | error | scatter, each without and with correction | in 90 %")
    rows, judged = [], []
    for others, held in _folds(parts):
        found = fit(others)
        for part in held:
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
