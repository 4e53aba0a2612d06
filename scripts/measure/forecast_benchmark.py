#!/usr/bin/env python3
"""Evaluates the use of the latency model's forecast in searches, on measured landscapes; needs no GPU.

    python scripts/measure/forecast_benchmark.py search FILE.landscape.xz --out docs/results/screening
    python scripts/measure/forecast_benchmark.py audit docs/results/samples/*.landscape.xz --out docs/results/skipping

``search`` counts the measurements that a search needs to come near the optimum. With the forecast, the search first
measures the configs with the fastest forecasts (evoengine.search.forecast.choice), prunes configs by forecast
(evoengine.search.strategies.forecast_pruning), does both, or also chooses configs by forecasts that the measured times
correct (evoengine.search.strategies.forecast_sampler). A measurement is one config, reported at once and never
repeated. Hand-written start configs are not used. Runs are reproducible from landscape and seed.

``audit`` lets some configs of a landscape count as measured, applies the pruning rule to all others, whose times are
known, and counts the wrong decisions. Both write OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import common
import numpy as np

from evoengine.costmodel.forecast_error import own_covariance
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config, Status
from evoengine.search.forecast.choice import Forecast, ForecastChoice, fastest_by_forecast, forecasts_for
from evoengine.search.strategies.forecast_pruning import CONFIDENCE, WIDE, ForecastPruner
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.strategy import Strategy
from evoengine.space.index_rows import IndexRows
from evoengine.space.loader import find_space
from evoengine.space.valid_space import ValidSpace
from evoengine.system.futures import done_future

NEAR: Final = (0.05, 0.02)
"""Relative distances from the optimum within which a search is near it."""
MODES: Final = {
    "nothing": (False, False, False),
    "first": (True, False, False),
    "skip": (False, True, False),
    "both": (True, True, False),
    "learn": (True, True, True),
}
"""Whether the configs with the fastest forecasts come first, whether configs are pruned by forecast, and whether the
forecast is corrected by the measured times and chooses further configs."""
FIRST: Final = 12
"""Number of configs with the fastest forecasts that count as measured in an audit."""
RANDOM: Final = (6, 12, 48)
"""Numbers of random configs that count as measured in an audit."""
MOST: Final = 1500
"""Maximum number of configs of a landscape in an audit; a larger landscape is sampled."""


def _with_forecasts(path: Path) -> tuple[Landscape, Mapping[str, Forecast]]:
    """A measured landscape, and the forecast of each of its families."""
    landscape = read_landscape(path)
    spaces = [find_space(family.name) for family in landscape.families]
    return landscape, forecasts_for(spaces, *common.measured_on(landscape))


# --- searches with and without the forecast ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """Measurements until a run is near the optimum: quartiles over the seeds; None if a run never was."""

    near: float
    quartiles: tuple[int | None, ...]


@dataclass
class Skips:
    """Pruned configs, and those among them that should have been measured."""

    configs: int = 0
    faster: int = 0
    """Faster than the best so far."""
    good: int = 0
    """Within 5 % of the optimum."""


class AuditedPruner(ForecastPruner):
    """Looks up the recorded times of the configs that it prunes."""

    def __init__(self, forecasts: Mapping[str, Forecast], landscape: Landscape, skips: Skips) -> None:
        super().__init__(forecasts)
        self._landscape = landscape
        self._skips = skips
        self._seen: set[Config] = set()

    def prunes(self, config: Config) -> bool:
        found = super().prunes(config)
        if found:
            self._count(config)
        return found

    def first_kept(self, space: ValidSpace, rows: IndexRows) -> int | None:
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


def search_part(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    landscape, forecasts = _with_forecasts(path)
    strategies = common.comma_list(arguments.strategies)
    runs = [_runs(landscape, forecasts, strategy, mode, arguments) for strategy in strategies for mode in MODES]
    return {
        "file": path.name,
        "key": landscape.key,
        "problem": common.measured_on(landscape)[0].key,
        "configs": len(landscape.evaluations),
        "runs": runs,
    }


def _runs(
    landscape: Landscape, forecasts: Mapping[str, Forecast], strategy: str, mode: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    first, skip, learn = MODES[mode]
    found, skips = [], Skips()
    for seed in range(arguments.seeds):
        choice = fastest_by_forecast(landscape.spaces, forecasts, seed) if first else ForecastChoice()
        pruner = AuditedPruner(forecasts, landscape, skips) if skip else None
        candidates = done_future(choice) if learn else None
        searcher = make_strategy(strategy, landscape.spaces, seed, pruner=pruner, forecast=candidates)
        searcher.enqueue(choice.opening)
        found.append(_measurements_to(landscape, searcher, arguments.budget))
    print(f"{landscape.key}: {strategy}, {mode}", file=sys.stderr)
    reached = [asdict(one) for one in _reached(found)]
    return {"strategy": strategy, "forecast": mode, "reached": reached, "skips": asdict(skips) if skip else None}


def _measurements_to(landscape: Landscape, strategy: Strategy, budget: int) -> list[float]:
    """Measurements until the best so far is near the optimum, for each of NEAR; infinite if it never is."""
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


def search_page(report: dict[str, Any]) -> str:
    """Measurements to near the optimum by strategy and mode, as Markdown."""
    lines = [
        "# Measurements that the forecast saves",
        "",
        f"    {report['command']}",
        "",
        "Measurements until the best so far is within 5 % and 2 % of the optimum: lower quartile, median and upper",
        f"quartile of {report['seeds']} runs. *Forecast* is the use of the latency model: *first* measures the configs",
        "with the fastest forecasts before all others, *skip* prunes configs by forecast and by its errors in the same",
        "run, *both* does both, and *learn* also tries configs whose forecasts, corrected by these errors, may be the",
        "fastest. *Skipped* is the mean number of distinct pruned configs per run; *faster* counts, over all runs,",
        "those that were faster than the best so far, *good* those within 5 % of the optimum. Replayed from measured",
        "landscapes, without the hand-written start configs.",
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


# --- audit of pruning -------------------------------------------------------------------------------------------------


@dataclass
class Audit:
    """Pruning decisions for the configs that do not count as measured, summed over all draws."""

    measured: str
    judged: int = 0
    skipped: int = 0
    faster: int = 0
    """Skipped, and faster than the best measured config."""
    good: int = 0
    """Skipped, and within 5 % of the landscape's best."""
    near: int = 0
    """Skipped, and within the margin of the pruning rule above the best measured config."""


class StoredForecast:
    """A forecast that returns precomputed times."""

    is_quick = True
    at_once = 128

    def __init__(self, expected_us: Mapping[Config, float]) -> None:
        self._expected_us = expected_us

    def us(self, config: Config) -> float:
        return self._expected_us[config]

    def us_of(self, configs: Sequence[Config]) -> np.ndarray:
        return np.array([self.us(config) for config in configs])

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> np.ndarray:
        return self.us_of([space.config_of(row) for row in rows])

    def error_covariance(self, configs: Sequence[Config]) -> np.ndarray:
        return own_covariance(configs)

    def kind(self, config: Config) -> Hashable:
        return config.family


def audit_part(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    landscape, forecasts = _with_forecasts(path)
    times_us = _times(landscape)
    forecast = StoredForecast({config: forecasts[config.family].us(config) for config in times_us})
    configs = list(times_us)
    first = sorted(configs, key=forecast.us)[:FIRST]
    audits = [_audit(f"{FIRST} forecast as fastest", [first], times_us, forecast)]
    for count in RANDOM:
        if count <= len(configs) // 2:
            chosen = [
                np.random.default_rng(seed).choice(len(configs), count, replace=False)
                for seed in range(arguments.draws)
            ]
            known = [[configs[place] for place in places] for places in chosen]
            audits.append(_audit(f"{count} at random", known, times_us, forecast))
    return {
        "file": path.name,
        "key": landscape.key,
        "problem": common.measured_on(landscape)[0].key,
        "configs": len(landscape.evaluations),
        "audits": [asdict(audit) for audit in audits],
    }


def _times(landscape: Landscape) -> dict[Config, float]:
    """Measured times of a random choice of the correct configs."""
    correct = [one for one in landscape.evaluations if one.ok]
    places = np.random.default_rng(0).permutation(len(correct))[:MOST]
    return {correct[place].config: median_us(correct[place]) for place in places}


def _audit(
    measured: str, draws: Sequence[Sequence[Config]], times_us: Mapping[Config, float], forecast: StoredForecast
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


def audit_page(report: dict[str, Any]) -> str:
    """Pruned configs and wrong decisions by landscape, as Markdown."""
    lines = [
        "# Pruning by forecast, audited",
        "",
        f"    {report['command']}",
        "",
        "Some configs of a measured landscape count as measured: the twelve with the fastest forecasts, or some at",
        f"random ({report['draws']} draws). The rule in `evoengine/search/strategies/forecast_pruning.py` decides",
        f"about the others: it skips configs above {WIDE} times the best measured time with {CONFIDENCE:.1%}",
        "confidence. *Faster* are skipped configs that are faster than the best measured one, *good* those within 5 %",
        f"of the landscape's best, *near* those within {WIDE} times the best measured one, assumed to be slower. The",
        "landscapes named *sample* are uniform samples of the whole space of the family; the others are parts of it.",
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
    lines += ["", f"{wrong} of {skipped:,} skipped configs were faster than the best measured one."]
    return "\n".join(lines)


def write_search(arguments: argparse.Namespace) -> None:
    """Runs the searches and writes their page."""
    parts = [search_part(path, arguments) for path in arguments.landscapes]
    command = " ".join(["scripts/measure/forecast_benchmark.py", *common.without_folders(sys.argv[1:])])
    report = {"command": command, "seeds": arguments.seeds, "landscapes": parts}
    common.write_results(arguments.out, report, search_page(report))


def write_audit(arguments: argparse.Namespace) -> None:
    """Audits the landscapes and writes the page."""
    parts = [audit_part(path, arguments) for path in arguments.landscapes]
    names = " ".join(path.name for path in arguments.landscapes)
    command = f"scripts/measure/forecast_benchmark.py audit {names}"
    report = {"command": command, "draws": arguments.draws, "landscapes": parts}
    common.write_results(arguments.out, report, audit_page(report))


def main() -> int:
    parser = common.parser(__doc__)
    modes = parser.add_subparsers(required=True)
    search = modes.add_parser("search", help="Compare searches with and without the forecast.")
    search.add_argument("--strategies", default="evolution,random", help="Comma-separated strategies.")
    search.add_argument("--seeds", type=int, default=30, help="Runs per strategy and mode.")
    search.add_argument("--budget", type=int, default=400, help="Maximum number of measurements of a run.")
    search.set_defaults(act=write_search)
    audit = modes.add_parser("audit", help="Count wrong pruning decisions.")
    audit.add_argument("--draws", type=int, default=30, help="Random choices of the configs that count as measured.")
    audit.set_defaults(act=write_audit)
    for mode in (search, audit):
        common.add_landscapes(mode)
    arguments = parser.parse_args()
    arguments.act(arguments)
    return 0


if __name__ == "__main__":
    common.run(main)
