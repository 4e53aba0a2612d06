#!/usr/bin/env python3
"""Measures what the latency model's forecast saves a search: measurements to near the optimum, with it and without.

    .venv/bin/python scripts/screening_benchmark.py mission.landscape.xz long.landscape.xz --out docs/results/screening

A strategy searches a measured landscape from nothing; with the forecast it first tries the configs that the latency
model expects to be fastest (evoengine.search.screening). A measurement is one config, told at once; none is made twice.
Starts that somebody found by hand take no part. Runs follow from landscape and seed. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.errors import EvoEngineError, UsageError
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config
from evoengine.search.registry import make_strategy
from evoengine.search.screening import forecasts_for, promising
from evoengine.space.loader import find_space
from evoengine.target import target_for_gpu

NEAR: Final = (0.05, 0.02)
"""Shares of the optimum within which a search is near it."""


@dataclass(frozen=True)
class Reached:
    """How many measurements runs took: quartiles over the seeds; None where so many never got there."""

    near: float
    quartiles: tuple[int | None, ...]


def main() -> int:
    arguments = _arguments()
    try:
        parts = [_part(path, arguments) for path in arguments.landscapes]
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    command = " ".join(["scripts/screening_benchmark.py", *map(_without_folder, sys.argv[1:])])
    report = {"command": command, "seeds": arguments.seeds, "strategy": arguments.strategy, "landscapes": parts}
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
    parser.add_argument("--strategy", default="evolution", help="what searches")
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
    runs: dict[str, list[list[float]]] = {"without": [], "with": []}
    for seed in range(arguments.seeds):
        first = promising(landscape.spaces, forecasts, seed)
        for name, configs in (("without", []), ("with", first)):
            runs[name].append(_measurements_to(landscape, arguments, seed, configs))
        print(f"{path.name}: seed {seed}", file=sys.stderr)
    return {
        "file": path.name,
        "key": landscape.key,
        "problem": landscape.problem.key,
        "configs": len(landscape.evaluations),
        "runs": {name: [asdict(one) for one in _reached(found)] for name, found in runs.items()},
    }


def _measurements_to(
    landscape: Landscape, arguments: argparse.Namespace, seed: int, first: Sequence[Config]
) -> list[float]:
    """Measurements until the best so far is near the optimum, for each of NEAR; infinite where it never was."""
    strategy = make_strategy(arguments.strategy, landscape.spaces, seed)
    strategy.enqueue(first)
    best_us, optimum_us = math.inf, median_us(landscape.best)
    found = dict.fromkeys(NEAR, math.inf)
    for number in range(1, arguments.budget + 1):
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
        f"Measurements of the strategy {report['strategy']} until the best so far is within 5 % and 2 % of the",
        f"optimum: lower quartile, median and upper quartile of {report['seeds']} runs, without the latency model's",
        "forecast and with it. Replayed from measured landscapes; starts found by hand take no part.",
        "",
        "| problem | configs | forecast | to 5 % | to 2 % |",
        "|:--|--:|:--|--:|--:|",
    ]
    for part in report["landscapes"]:
        for name, reached in part["runs"].items():
            cells = [" / ".join("–" if count is None else str(count) for count in one["quartiles"]) for one in reached]
            lines.append(f"| {part['problem']} | {part['configs']:,} | {name} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
