#!/usr/bin/env python3
"""Measures what the latency model's forecast saves a search: measurements to near the optimum, with it and without.

    .venv/bin/python scripts/measure/screening_benchmark.py mission.landscape.xz long.landscape.xz --out docs/results/screening

A strategy searches a measured landscape from nothing. With the forecast it first tries the configs that the latency
model expects to be fastest (evoengine.search.warmstart.forecast), or passes over what the model, as it fared so far, finds
hopeless (evoengine.search.strategies.forecast_pruning), or both. A measurement is one config, told at once; none is made twice.
Starts that somebody found by hand take no part. Runs follow from landscape and seed. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.errors import EvoEngineError, UsageError
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config
from evoengine.search.strategies.forecast_pruning import ForecastPruner
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.strategy import Strategy
from evoengine.search.warmstart.forecast import Forecast, fastest_by_forecast, forecasts_for
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.language.loader import find_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import target_for_gpu

NEAR: Final = (0.05, 0.02)
"""Shares of the optimum within which a search is near it."""


MODES: Final = {"nothing": (False, False), "first": (True, False), "skip": (False, True), "both": (True, True)}
"""Whether the forecast's best are tried first, and whether what it finds hopeless is passed over."""


@dataclass(frozen=True)
class Reached:
    """How many measurements runs took: quartiles over the seeds; None where so many never got there."""

    near: float
    quartiles: tuple[int | None, ...]


@dataclass
class Skips:
    """What was passed over, and what of it should not have been."""

    configs: int = 0
    faster: int = 0
    """Faster than the best so far."""
    good: int = 0
    """Within 5 % of the optimum."""


class AuditedPruner(ForecastPruner):
    """Looks up how fast what it passes over is."""

    def __init__(self, forecasts: Mapping[str, Forecast], landscape: Landscape, skips: Skips) -> None:
        super().__init__(forecasts)
        self._landscape = landscape
        self._skips = skips
        self._seen: set[Config] = set()

    def prunes(self, config: Config) -> bool:
        """Counts as well."""
        found = super().prunes(config)
        if found:
            self._count(config)
        return found

    def first_kept(self, space: ValidSpace, rows: IndexRows) -> int | None:
        """Counts as well."""
        first = super().first_kept(space, rows)
        for row in rows[:first]:
            self._count(space.config_of(row))
        return first

    def _count(self, config: Config) -> None:
        if config in self._seen:
            return
        self._seen.add(config)
        true_us = self._landscape.by_config[config].value_us or math.inf
        self._skips.configs += 1
        self._skips.faster += true_us < self.best_us
        self._skips.good += true_us <= (1 + NEAR[0]) * median_us(self._landscape.best)


def main() -> int:
    arguments = _arguments()
    try:
        parts = [_part(path, arguments) for path in arguments.landscapes]
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    command = " ".join(["scripts/measure/screening_benchmark.py", *map(_without_folder, sys.argv[1:])])
    report = {"command": command, "seeds": arguments.seeds, "landscapes": parts}
    text = page(report)
    print(text)
    if arguments.out is not None:
        for suffix, content in ((".json", json.dumps(report, indent=1)), (".md", text)):
            arguments.out.with_suffix(suffix).write_text(content + "\n")
    return 0


def _without_folder(word: str) -> str:
    """A word of the command line; of a file its name alone: where it lies is of this machine."""
    return Path(word).name if Path(word).is_file() else word


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("landscapes", nargs="+", type=Path, help="files of measured landscapes")
    parser.add_argument("--strategies", default="evolution,random", help="what searches")
    parser.add_argument("--seeds", type=int, default=30, help="runs, each with and without")
    parser.add_argument("--budget", type=int, default=400, help="measurements after which a run ends")
    parser.add_argument("--out", type=Path, help="where to write, without a suffix")
    return parser.parse_args()


def _part(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    landscape = read_landscape(path)
    target = target_for_gpu(landscape.device.name)
    if landscape.problem is None or landscape.device.predicted or target is None:
        raise UsageError(f"{path}: the forecast is tried on measured landscapes of attention problems on known GPUs")
    spaces = [find_space(family.name) for family in landscape.families]
    forecasts = forecasts_for(spaces, landscape.problem, target.compiled_for(landscape.device.arch))
    runs = [_runs(landscape, forecasts, strategy, mode, arguments) for strategy in _listed(arguments) for mode in MODES]
    return {
        "file": path.name,
        "key": landscape.key,
        "problem": landscape.problem.key,
        "configs": len(landscape.evaluations),
        "runs": runs,
    }


def _listed(arguments: argparse.Namespace) -> list[str]:
    return [str(name) for name in arguments.strategies.split(",")]


def _runs(
    landscape: Landscape, forecasts: Mapping[str, Forecast], strategy: str, mode: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Runs of one strategy in one mode."""
    first, skip = MODES[mode]
    found, skips = [], Skips()
    for seed in range(arguments.seeds):
        starts = fastest_by_forecast(landscape.spaces, forecasts, seed) if first else []
        pruner = AuditedPruner(forecasts, landscape, skips) if skip else None
        searcher = make_strategy(strategy, landscape.spaces, seed, pruner=pruner)
        searcher.enqueue(starts)
        found.append(_measurements_to(landscape, searcher, arguments.budget))
    print(f"{landscape.key}: {strategy}, {mode}", file=sys.stderr)
    reached = [asdict(one) for one in _reached(found)]
    return {"strategy": strategy, "forecast": mode, "reached": reached, "skips": asdict(skips) if skip else None}


def _measurements_to(landscape: Landscape, strategy: Strategy, budget: int) -> list[float]:
    """Measurements until the best so far is near the optimum, for each of NEAR; infinite where it never was."""
    best_us, optimum_us = math.inf, median_us(landscape.best)
    found = dict.fromkeys(NEAR, math.inf)
    for number in range(1, budget + 1):
        proposal = strategy.ask()
        if proposal is None or found[NEAR[-1]] < math.inf:
            break
        outcome = landscape.by_config[proposal.config]
        strategy.tell(proposal, outcome.value_us, outcome.status)
        best_us = min(best_us, outcome.value_us or math.inf)
        for near in NEAR:
            if best_us <= (1 + near) * optimum_us:
                found[near] = min(found[near], number)
    return list(found.values())


def _reached(runs: Sequence[Sequence[float]]) -> list[Reached]:
    found = []
    for near, counts in zip(NEAR, zip(*runs, strict=True), strict=True):
        ordered = sorted(counts)
        picked = [ordered[math.ceil(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75)]
        found.append(Reached(near, tuple(None if count == math.inf else int(count) for count in picked)))
    return found


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = [
        "# What the forecast saves a search",
        "",
        f"    {report['command']}",
        "",
        "Measurements until the best so far is within 5 % and 2 % of the optimum: lower quartile, median and upper",
        f"quartile of {report['seeds']} runs. *Forecast* is what the latency model is used for: *first* tries the",
        "configs that it expects to be fastest before any other, *skip* passes over what it finds hopeless as it fared",
        "in the same run. *Skipped* are different configs that were proposed and passed over, in the mean run;",
        "*faster* of all runs' those that were faster than the best so far, *good* those within 5 % of the optimum.",
        "Replayed from measured landscapes; starts found by hand take no part.",
        "",
        "| problem | configs | strategy | forecast | to 5 % | to 2 % | skipped | faster | good |",
        "|:--|--:|:--|:--|--:|--:|--:|--:|--:|",
    ]
    for part in report["landscapes"]:
        lines += [_row(part, run, report["seeds"]) for run in part["runs"]]
    return "\n".join(lines)


def _row(part: dict[str, Any], run: dict[str, Any], seeds: int) -> str:
    cells = [" / ".join("–" if count is None else str(count) for count in one["quartiles"]) for one in run["reached"]]
    skips = run["skips"]
    skipped = (
        ["", "", ""] if skips is None else [f"{skips['configs'] / seeds:.1f}", str(skips["faster"]), str(skips["good"])]
    )
    named = [part["problem"], f"{part['configs']:,}", run["strategy"], run["forecast"]]
    return f"| {' | '.join([*named, *cells, *skipped])} |"


if __name__ == "__main__":
    sys.exit(main())
