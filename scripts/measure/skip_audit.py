#!/usr/bin/env python3
"""Audits what a search passes over as hopeless: on measured landscapes, how much, and how much of it wrongly.

    .venv/bin/python scripts/measure/skip_audit.py docs/results/{landscapes,samples}/*.landscape.xz --out docs/results/skipping

Some configs of a landscape count as measured; by them the rule of evoengine.search.strategies.forecast_pruning judges all the others,
whose times are known. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.errors import EvoEngineError, UsageError
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config, Status
from evoengine.search.strategies.forecast_pruning import CONFIDENCE, WIDE, ForecastPruner
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.warmstart.forecast import forecasts_for
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.language.loader import find_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import target_for_gpu

FIRST: Final = 12
"""Configs that the forecast puts first."""
RANDOM: Final = (6, 12, 48)
MOST: Final = 1500
"""Configs of a landscape that are judged, a random choice."""


@dataclass
class Audit:
    """Judgements on the configs that were not measured, over all draws."""

    measured: str
    judged: int = 0
    skipped: int = 0
    faster: int = 0
    """Skipped, and faster than the best that was measured."""
    good: int = 0
    """Skipped, and within 5 % of the landscape's best."""
    near: int = 0
    """Skipped, and within the factor by which the bound must lie above the best."""


class Known:
    """Forecasts that were made before."""

    def __init__(self, expected_us: Mapping[Config, float]) -> None:
        self._expected_us = expected_us

    def us(self, config: Config) -> float:
        """See :class:`~evoengine.search.warmstart.forecast.Forecast`."""
        return self._expected_us[config]

    def us_of(self, configs: Sequence[Config]) -> np.ndarray:
        """See :class:`~evoengine.search.warmstart.forecast.Forecast`."""
        return np.array([self.us(config) for config in configs])

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> np.ndarray:
        """See :class:`~evoengine.search.warmstart.forecast.Forecast`."""
        return self.us_of([space.config_of(row) for row in rows])

    def kind(self, config: Config) -> Hashable:
        """See :class:`~evoengine.search.warmstart.forecast.Forecast`."""
        return config.family


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("landscapes", nargs="+", type=Path, help="files of measured landscapes")
    parser.add_argument("--draws", type=int, default=30, help="random choices of what counts as measured")
    parser.add_argument("--out", type=Path, help="where to write, without a suffix")
    arguments = parser.parse_args()
    try:
        parts = [_part(path, arguments.draws) for path in arguments.landscapes]
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    names = " ".join(path.name for path in arguments.landscapes)
    report = {"command": f"scripts/measure/skip_audit.py {names}", "draws": arguments.draws, "landscapes": parts}
    text = page(report)
    print(text)
    if arguments.out is not None:
        for suffix, content in ((".json", json.dumps(report, indent=1)), (".md", text)):
            arguments.out.with_suffix(suffix).write_text(content + "\n")
    return 0


def _part(path: Path, draws: int) -> dict[str, Any]:
    landscape = read_landscape(path)
    times_us, forecast = _times(landscape), _forecast(landscape)
    configs = list(times_us)
    first = sorted(configs, key=forecast.us)[:FIRST]
    audits = [_audit(f"{FIRST} forecast as fastest", [first], times_us, forecast)]
    for count in RANDOM:
        if count <= len(configs) // 2:
            chosen = [np.random.default_rng(seed).choice(len(configs), count, replace=False) for seed in range(draws)]
            known = [[configs[place] for place in places] for places in chosen]
            audits.append(_audit(f"{count} at random", known, times_us, forecast))
    assert landscape.problem is not None, "a forecast was made for it"
    return {
        "file": path.name,
        "key": landscape.key,
        "problem": landscape.problem.key,
        "configs": len(landscape.evaluations),
        "audits": [asdict(audit) for audit in audits],
    }


def _times(landscape: Landscape) -> dict[Config, float]:
    """Measured times of a random choice of the correct configs."""
    correct = [one for one in landscape.evaluations if one.ok]
    places = np.random.default_rng(0).permutation(len(correct))[:MOST]
    return {correct[place].config: median_us(correct[place]) for place in places}


def _forecast(landscape: Landscape) -> Known:
    target = target_for_gpu(landscape.device.name)
    if landscape.problem is None or landscape.device.predicted or target is None:
        raise UsageError("skipping is audited on measured landscapes of attention problems on known GPUs")
    spaces = [find_space(family.name) for family in landscape.families]
    forecasts = forecasts_for(spaces, landscape.problem, target.compiled_for(landscape.device.arch))
    return Known({config: forecasts[config.family].us(config) for config in _times(landscape)})


def _audit(
    measured: str, draws: Sequence[Sequence[Config]], times_us: Mapping[Config, float], forecast: Known
) -> Audit:
    found, optimum_us = Audit(measured), min(times_us.values())
    families = {config.family for config in times_us}
    for known in draws:
        pruner = ForecastPruner(dict.fromkeys(families, forecast))
        pruner.learn([Outcome(config, times_us[config], Status.OK, place) for place, config in enumerate(known)])
        best_us = min((times_us[config] for config in known), default=math.inf)
        rest = times_us.keys() - set(known)
        skipped = [times_us[config] for config in rest if pruner.prunes(config)]
        found.judged += len(rest)
        found.skipped += len(skipped)
        found.faster += sum(us < best_us for us in skipped)
        found.good += sum(us <= 1.05 * optimum_us for us in skipped)
        found.near += sum(us <= WIDE * best_us for us in skipped)
    return found


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = [
        "# What a search passes over, and whether it should",
        "",
        f"    {report['command']}",
        "",
        "Some configs of a measured landscape count as measured: the twelve that the forecast puts first, or some at",
        f"random ({report['draws']} draws). By them the rule of `evoengine/search/strategies/forecast_pruning.py` judges the others: it",
        f"skips what stays above {WIDE} times the best measured time with {CONFIDENCE:.1%} confidence. *Faster* are",
        "skipped configs that are faster than the best measured one, *good* those within 5 % of the landscape's best,",
        f"*near* those within {WIDE} times the best measured one, which the rule takes to be slower. The landscapes",
        "named *sample* are uniform samples of the whole space of the family; the others are parts of it.",
        "",
        "| landscape | problem | measured | judged | skipped | faster | good | near |",
        "|:--|:--|:--|--:|--:|--:|--:|--:|",
    ]
    for part in report["landscapes"]:
        name = part["file"].removesuffix(".landscape.xz")
        for audit in part["audits"]:
            share = audit["skipped"] / audit["judged"]
            counts = f"{audit['judged']:,} | {share:.0%} | {audit['faster']} | {audit['good']} | {audit['near']}"
            lines.append(f"| {name} | {part['problem']} | {audit['measured']} | {counts} |")
    total = [audit for part in report["landscapes"] for audit in part["audits"]]
    skipped, wrong = sum(one["skipped"] for one in total), sum(one["faster"] for one in total)
    lines += ["", f"Of {skipped:,} skipped, {wrong} were faster than the best measured one."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
