#!/usr/bin/env python3
"""Finds tunables whose effect the forecast misjudges, from measured configs that differ in one of them; needs no GPU.

    python scripts/measure/forecast_pairs.py *.db --out pairs
    python scripts/measure/forecast_pairs.py *.landscape.xz --within 0 --problems 3

Two configs of one problem that differ in one tunable have all other errors of the forecast in common: their measured
times tell what the tunable does on this problem, and their forecasts what the forecast takes it to do. For each pair of
values a row gives the medians of both over the pairs of a problem, averaged over the problems, and the *bias*, measured
over forecast: the median over the problems, and its standard deviation. Leaderboards of searches on a GPU have many
such pairs near the best, landscapes of uniform samples few.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, stdev

import common
from foresight import Measured, read_measured

from evoengine.model import Config, Value
from evoengine.search.forecast.choice import forecasts_for
from evoengine.space.loader import find_space


@dataclass(frozen=True)
class Change:
    """A tunable's change from one value to another."""

    family: str
    tunable: str
    first: Value
    second: Value


@dataclass(frozen=True)
class Effect:
    """Logarithms of the time ratios of a pair of configs, second over first."""

    measured: float
    forecast: float


@dataclass(frozen=True)
class Bias:
    """How the forecast misjudges a change."""

    change: Change
    problems: int
    pairs: int
    measured: float
    """Mean over the problems of the median relative change of the measured time."""
    forecast: float
    """The same of the forecast."""
    bias: float
    """Median over the problems of measured over forecast, relative."""
    deviation: float
    """Standard deviation of the problems' logarithms of the bias."""


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="Measured landscapes and leaderboards.")
    parser.add_argument("--within", type=float, default=1.6, help="Slowest config over the best; 0 for all of them.")
    parser.add_argument("--problems", type=int, default=4, help="Fewest problems of a change that is listed.")
    parser.add_argument("--pairs", type=int, default=8, help="Fewest pairs of a change that is listed.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    arguments = parser.parse_args()
    effects: defaultdict[Change, dict[str, list[Effect]]] = defaultdict(dict)
    for path in arguments.files:
        for one in read_measured(path):
            for change, effect in _effects(one, arguments.within):
                effects[change].setdefault(one.problem.key, []).append(effect)
    found = [_bias(change, by_problem) for change, by_problem in effects.items()]
    shown = [one for one in found if one.problems >= arguments.problems and one.pairs >= arguments.pairs]
    shown.sort(key=lambda one: -abs(math.log1p(one.bias)))
    command = " ".join(["scripts/measure/forecast_pairs.py", *common.without_folders(sys.argv[1:])])
    common.write_results(arguments.out, {"command": command, "biases": [asdict(one) for one in shown]}, _page(shown))
    return 0


def _effects(one: Measured, within: float) -> Iterator[tuple[Change, Effect]]:
    """Yields the pairs of one file's configs that differ in one tunable."""
    forecasts = forecasts_for(map(find_space, {config.family for config in one.configs}), one.problem, one.target)
    limit_us = min(one.measured_us) * (within or math.inf)
    near = [
        (config, us)
        for config, us in zip(one.configs, one.measured_us, strict=True)
        if config.family in forecasts and us <= limit_us
    ]
    expected = {config: forecasts[config.family].us(config) for config, _ in near}
    runs = [(config, us) for config, us in near if math.isfinite(expected[config])]
    for (first, first_us), (second, second_us) in itertools.combinations(runs, 2):
        change = _change(first, second)
        if change is None:
            continue
        effect = Effect(math.log(second_us / first_us), math.log(expected[second] / expected[first]))
        if str(change.first) > str(change.second):
            change = Change(change.family, change.tunable, change.second, change.first)
            effect = Effect(-effect.measured, -effect.forecast)
        yield change, effect


def _change(first: Config, second: Config) -> Change | None:
    """The change between two configs; None unless they differ in exactly one tunable."""
    if first.family != second.family:
        return None
    ours, theirs = first.as_dict(), second.as_dict()
    changed = [name for name, value in ours.items() if value != theirs.get(name)]
    if len(changed) != 1 or ours.keys() != theirs.keys():
        return None
    return Change(first.family, changed[0], ours[changed[0]], theirs[changed[0]])


def _bias(change: Change, by_problem: Mapping[str, Sequence[Effect]]) -> Bias:
    measured = [median(effect.measured for effect in effects) for effects in by_problem.values()]
    forecast = [median(effect.forecast for effect in effects) for effects in by_problem.values()]
    biases = [one - other for one, other in zip(measured, forecast, strict=True)]
    return Bias(
        change,
        problems=len(by_problem),
        pairs=sum(map(len, by_problem.values())),
        measured=math.expm1(fmean(measured)),
        forecast=math.expm1(fmean(forecast)),
        bias=math.expm1(median(biases)),
        deviation=stdev(biases) if len(biases) > 1 else 0.0,
    )


def _page(shown: Sequence[Bias]) -> str:
    lines = [
        "| family | tunable | from | to | problems | pairs | measured | forecast | bias | deviation |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in shown:
        change = one.change
        what = f"`{change.family}` | `{change.tunable}` | {change.first} | {change.second}"
        lines.append(
            f"| {what} | {one.problems} | {one.pairs} "
            f"| {one.measured:+.1%} | {one.forecast:+.1%} | {one.bias:+.1%} | {one.deviation:.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
