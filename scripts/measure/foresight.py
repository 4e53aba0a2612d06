#!/usr/bin/env python3
"""Judges the forecast on problems that were not used for its fit; needs no GPU.

    python scripts/measure/foresight.py *.landscape.xz *.db --before before.json --out docs/results/foresight
    python scripts/measure/foresight.py *.landscape.xz *.db --scores before.json

Landscapes are samples of the whole space, leaderboards the candidates of searches on a GPU, which are dense near the
best. A problem is judged if the SHA-256 hash of its key is odd; the others were used for the fit. For each file the
configs are predicted from the config alone. *Top 20* is the loss of the best measured time among 20 configs against the
best of the file: for the 20 fastest predictions, and for the decision set (evoengine.search.forecast.decision_set).
*Kinds* counts the work partitions among the 20. ``--replay`` also counts, on landscapes, the evaluations until a search
is within 5 % of the best, with and without the forecast's opening and with outcomes that arrive late.
``--scores`` only writes the figures of the forecast, for the column *before* of another version.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import common
import numpy as np

from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Problem
from evoengine.search.forecast.choice import fastest_by_forecast, forecasts_for
from evoengine.search.forecast.decision_set import decision_set
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.strategy import Proposal, Strategy
from evoengine.space.loader import find_space
from evoengine.statistics import rank_correlation
from evoengine.target import Target, target_for_gpu

TOP: Final = 20
LAGS: Final = (0, 46)
"""Outcomes that are missing when a config is proposed: none, and those of a search with sixteen compilers."""
SEEDS: Final = 10
NEAR: Final = 1.05


@dataclass(frozen=True)
class Measured:
    """Measured configs of one file, each machine code once."""

    file: str
    problem: Problem
    target: Target
    configs: tuple[Config, ...]
    measured_us: tuple[float, ...]

    @property
    def judged(self) -> bool:
        return is_judged(self.problem)


@dataclass(frozen=True)
class Judgement:
    """Figures of one file."""

    file: str
    problem: str
    judged: bool
    configs: int
    best_us: float
    spearman: float
    error: float
    plain: float
    """Loss of the best of the 20 fastest predictions, relative."""
    chosen: float
    """Loss of the best of the decision set."""
    plain_kinds: int
    chosen_kinds: int


def is_judged(problem: Problem) -> bool:
    """Whether no fit has used a problem: the SHA-256 hash of its key is odd."""
    return int(hashlib.sha256(problem.key.encode()).hexdigest(), 16) % 2 == 1


def main() -> int:
    arguments = _arguments()
    files = [measured for path in arguments.files for measured in read_measured(path)]
    found = [_judged(one) for one in files]
    if arguments.scores is not None:
        figures = {one.file: [one.spearman, one.error, one.plain] for one in found}
        arguments.scores.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        return 0
    before = json.loads(arguments.before.read_text(encoding="utf-8")) if arguments.before else {}
    replays = [_replayed(path) for path in arguments.files if arguments.replay and path.suffix == ".xz"]
    report = {
        "command": " ".join(["scripts/measure/foresight.py", *common.without_folders(sys.argv[1:])]),
        "judgements": [asdict(one) for one in found],
        "before": before,
        "replays": [one for one in replays if one is not None],
    }
    common.write_results(arguments.out, report, page(report, found))
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="Measured landscapes and leaderboards.")
    parser.add_argument("--before", type=Path, help="Figures of another version, from --scores.")
    parser.add_argument("--scores", type=Path, help="File to write the figures of the forecast to.")
    parser.add_argument("--replay", action="store_true", help="Also replay searches on the judged landscapes.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    return parser.parse_args()


# --- data -------------------------------------------------------------------------------------------------------------


def read_measured(path: Path) -> list[Measured]:
    """Measured configs of a landscape or a leaderboard."""
    if path.suffix == ".xz":
        landscape = read_landscape(path)
        ok = {one.code_hash or one.config.key: one for one in reversed(landscape.evaluations) if one.ok}.values()
        problem, target = common.measured_on(landscape)
        return [Measured(path.name, problem, target, tuple(e.config for e in ok), tuple(map(median_us, ok)))]
    with Leaderboard(f"sqlite:///{path}", create=False) as board:
        rows = {row.code_hash or str(row.id): row for row in reversed(board.rows(RowFilter(device_kind="cuda")))}
        problems = {study.scope.problem: study.key.problem for study in board.studies()}
    first = next(iter(rows.values()))
    target = target_for_gpu(first.device)
    assert target is not None, f"no data sheet of {first.device}"
    timed = [row for row in rows.values() if row.median_us]
    configs = tuple(row.full_config for row in timed)
    times = tuple(row.median_us or 0.0 for row in timed)
    return [Measured(path.name, problems[first.problem], target.compiled_for(first.arch), configs, times)]


# --- judging ----------------------------------------------------------------------------------------------------------


def _judged(one: Measured) -> Judgement:
    families = sorted({config.family for config in one.configs})
    forecasts = forecasts_for(map(find_space, families), one.problem, one.target)
    kept = [place for place, config in enumerate(one.configs) if config.family in forecasts]
    configs = [one.configs[place] for place in kept]
    predicted = np.array([forecasts[config.family].us(config) for config in configs])
    measured = np.array([one.measured_us[place] for place in kept])
    runs = np.isfinite(predicted)
    plain = np.argsort(predicted, kind="stable")[:TOP].tolist()
    chosen = decision_set(configs, predicted, forecasts, TOP)

    def loss(places: Sequence[int]) -> float:
        return round(float(measured[places].min() / min(one.measured_us)) - 1, 4)

    def kinds(places: Sequence[int]) -> int:
        return len({(configs[place].family, forecasts[configs[place].family].kind(configs[place])) for place in places})

    return Judgement(
        *(one.file, one.problem.key, one.judged, len(one.configs), round(min(one.measured_us), 3)),
        spearman=round(rank_correlation(predicted[runs], measured[runs]) or 0.0, 4),
        error=round(float(np.median(np.abs(predicted[runs] / measured[runs] - 1))), 4),
        plain=loss(plain),
        chosen=loss(chosen),
        plain_kinds=kinds(plain),
        chosen_kinds=kinds(chosen),
    )


# --- replays ----------------------------------------------------------------------------------------------------------


def _replayed(path: Path) -> dict[str, Any] | None:
    """Median evaluations to 5 % of the best by lag, without and with the forecast's opening; None if not judged."""
    landscape = read_landscape(path)
    problem, target = common.measured_on(landscape)
    if int(hashlib.sha256(problem.key.encode()).hexdigest(), 16) % 2 == 0:
        return None
    forecasts = forecasts_for([find_space(family.name) for family in landscape.families], problem, target)
    openings = [fastest_by_forecast(landscape.spaces, forecasts, seed).opening for seed in range(SEEDS)]
    found: dict[str, Any] = {"problem": problem.key, "configs": len(landscape.evaluations)}
    for lag in LAGS:
        for name in ("without", "with"):
            counts = []
            for seed in range(SEEDS):
                strategy = make_strategy("evolution", landscape.spaces, seed)
                if name == "with":
                    strategy.enqueue(openings[seed])
                counts.append(_evaluations(landscape, strategy, lag))
            found[f"{name} {lag}"] = median(counts)
    return found


def _evaluations(landscape: Landscape, strategy: Strategy, lag: int) -> int:
    """Evaluations until the best is near that of the landscape; outcomes arrive `lag` proposals late."""
    goal_us, waiting = NEAR * median_us(landscape.best), list[Proposal]()
    for number in range(1, len(landscape.evaluations) + 1):
        proposal = strategy.ask(lag)
        if proposal is None:
            return number
        outcome = landscape.by_config[proposal.config]
        if (outcome.value_us or math.inf) <= goal_us:
            return number
        waiting.append(proposal)
        if len(waiting) > lag:
            oldest = waiting.pop(0)
            recorded = landscape.by_config[oldest.config]
            strategy.tell(oldest, recorded.value_us, recorded.status)
    return len(landscape.evaluations)


# --- the page ---------------------------------------------------------------------------------------------------------


def page(report: dict[str, Any], found: Sequence[Judgement]) -> str:
    """The report as Markdown."""
    lines = ["# Foresight on unseen problems", "", f"    {report['command']}", ""]
    for of, judged in (("judged problems", True), ("problems of the fit", False)):
        for kind, is_search in (("Samples", False), ("Searches", True)):
            part = [one for one in found if one.judged is judged and one.file.endswith(".db") is is_search]
            if part:
                lines += [f"## {kind} of {of}", "", *_table(part, report["before"]), "", *_summary(part), ""]
    if report["replays"]:
        lines += _replay_table(report["replays"])
    return "\n".join(lines)


def _table(part: Sequence[Judgement], before: dict[str, list[float]]) -> list[str]:
    rows = [
        "| file | problem | configs | best, µs | Spearman | error | 20 fastest | kinds | set of 20 | kinds |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in part:
        old = before.get(one.file)
        spearman = f"{one.spearman:.3f}" if old is None else f"{old[0]:.3f} → {one.spearman:.3f}"
        error = f"{one.error:.1%}" if old is None else f"{old[1]:.1%} → {one.error:.1%}"
        plain = f"{one.plain:.1%}" if old is None else f"{old[2]:.1%} → {one.plain:.1%}"
        rows.append(
            f"| {one.file.split('.')[0]} | {one.problem} | {one.configs} | {one.best_us:.2f} | {spearman} | {error} "
            f"| {plain} | {one.plain_kinds} | {one.chosen:.1%} | {one.chosen_kinds} |"
        )
    return rows


def _summary(part: Sequence[Judgement]) -> list[str]:
    count = len(part)
    text = (
        f"Spearman is at least 0.9 on {sum(one.spearman >= 0.9 for one in part)} of {count} files, the error at most "
        f"15 % on {sum(one.error <= 0.15 for one in part)}; the best of the set is within 5 % of the best of the file "
        f"on {sum(one.chosen <= 0.05 for one in part)}, within 10 % on {sum(one.chosen <= 0.1 for one in part)} (of "
        f"the 20 fastest predictions: {sum(one.plain <= 0.05 for one in part)} and "
        f"{sum(one.plain <= 0.1 for one in part)})."
    )
    return [text]


def _replay_table(replays: Sequence[dict[str, Any]]) -> list[str]:
    names = [f"{name} {lag}" for lag in LAGS for name in ("without", "with")]
    heading = " | ".join(f"{name.split()[0]}, lag {name.split()[1]}" for name in names)
    return [
        "## Evaluations to 5 % of the best",
        "",
        f"Medians of {SEEDS} replayed searches (`evolution`), without and with the forecast's opening of 12 configs.",
        "",
        f"| problem | configs | {heading} |",
        f"|:--|--:|{'--:|' * len(names)}",
        *(
            f"| {one['problem']} | {one['configs']} | {' | '.join(f'{one[name]:g}' for name in names)} |"
            for one in replays
        ),
    ]


if __name__ == "__main__":
    common.run(main)
