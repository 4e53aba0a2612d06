#!/usr/bin/env python3
"""Compares the times of the champions on the models' page with their forecasts; needs no GPU.

    python scripts/measure/predicted_champions.py docs/results/models.json --out docs/results/predicted-champions

The champions of searches on a GPU (models.py) were found by measuring, so their forecasts are no choice of the model.
Problems without a forecast (packed sequences), and rows without a config, are left out and listed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import common
import models

from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.model import Config, Problem, Value
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import target_for_gpu

_NEAR: Final = 0.15
"""Largest error of a forecast that counts as near."""
_PAGE_WIDTH: Final = 125


@dataclass(frozen=True)
class Champion:
    """Measured and forecast time of one problem's fastest kernel."""

    name: str
    problem: str
    gpu: str
    family: str
    measured_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        """Relative error, as the absolute logarithm of the ratio."""
        return abs(math.log(self.predicted_us / self.measured_us))


def config_of(text: str, space: SearchSpace) -> Config:
    """Parses a config as ``compare`` printed it, perhaps with an older version of the space."""
    texts = {tunable.name: {str(value): value for value in tunable.values} for tunable in space.tunables}
    values: dict[str, Value] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        values[name] = texts[name][value] if name in texts else value
    return space.updated(Config.of(space.family, values))


def champion(row: Mapping[str, Any], problem: Problem) -> Champion | None:
    """The champion of one row of the page, or None if it has no forecast."""
    family, _, text = row["config"].partition(": ")
    target = target_for_gpu(row["device"])
    if not text or target is None:
        return None
    space = find_space(family)
    if not AnalyticForecast.covers(space, problem):
        return None
    predicted_us = AnalyticForecast(space, problem, target).us(config_of(text, space))
    return Champion(row["name"], row["problem"], target.name, family, row["ours_us"], predicted_us)


def page(found: Sequence[Champion], left_out: Sequence[str]) -> str:
    """The page as Markdown."""
    lines = [
        "# Forecasts of the champions of public models",
        "",
        "`scripts/measure/predicted_champions.py`: forecast from the config alone over measured time, for the fastest",
        "kernel that each search of [models](models.md) found.",
        "",
        "| GPU | champions | median ratio | median error | largest error | within 15 % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for gpu in sorted({one.gpu for one in found}):
        of_gpu = [one for one in found if one.gpu == gpu]
        errors = [one.error for one in of_gpu]
        ratio = statistics.median(one.predicted_us / one.measured_us for one in of_gpu)
        lines.append(
            f"| {gpu} | {len(of_gpu)} | {ratio:.3f} | {statistics.median(errors):.1%} | {max(errors):.1%} "
            f"| {sum(error <= _NEAR for error in errors)} |"
        )
    lines += ["", "| model | problem | GPU | family | measured, µs | forecast, µs | ratio |"]
    lines += ["|---|---|---|---|---:|---:|---:|"]
    lines += [
        f"| {one.name} | `{one.problem}` | {one.gpu} | `{one.family}` | {one.measured_us:.2f} | {one.predicted_us:.2f} "
        f"| {one.predicted_us / one.measured_us:.3f} |"
        for one in sorted(found, key=lambda one: (one.gpu, -one.error))
    ]
    if left_out:
        lines += ["", textwrap.fill(f"Left out: {', '.join(left_out)}.", _PAGE_WIDTH, break_on_hyphens=False)]
    return "\n".join(lines)


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("page", type=Path, help="JSON file of models.py's page.")
    parser.add_argument("--suite", type=Path, default=models.SUITE, help="File of problems.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    arguments: argparse.Namespace = parser.parse_args()
    problems = {entry.name: entry.build() for entry in models.read_suite(arguments.suite)}
    rows = json.loads(arguments.page.read_text(encoding="utf-8"))["problems"]
    champions = {row["name"]: champion(row, problems[row["name"]]) for row in rows}
    found = [one for one in champions.values() if one is not None]
    left_out = [name for name, one in champions.items() if one is None]
    common.write_results(arguments.out, [asdict(one) for one in found], page(found, left_out))
    return 0


if __name__ == "__main__":
    common.run(main)
