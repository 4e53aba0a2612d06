"""Statistics of finished runs: one record per landscape, and one per strategy, order and lag in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.errors import UsageError
from evoengine.landscape.file import SUFFIX
from evoengine.landscape.landscape import median_us
from strategies.running import landscape_of
from strategies.tasks import NEAR, OURS, Run, is_held_out

JUDGED: Final = "evolution"
"""Strategy that is compared with all peers: the default of ``search``."""
LEAST_SEEDS: Final = 3
"""Runs below which a strategy is left out, unless all have fewer."""
_DIGITS: Final = 4

_Groups = dict[tuple[str, str, str, int], list[Run]]
"""Runs that differ only in the seed, by tuner, strategy, order and lag."""


def landscape_report(name: str, runs: Sequence[Run], budget: int, commit: str) -> dict[str, Any]:
    """Returns the record of one landscape.

    Args:
        name: File of the landscape.
        runs: Runs on this and other landscapes.
        budget: Evaluations per run.
        commit: Commit of EvoEngine's strategies.
    """
    landscape = landscape_of(name)
    groups = _grouped(name, runs)
    entries = [_entry(group, budget, commit) for group in groups.values()]
    lags = sorted({entry["lag"] for entry in entries})
    comparisons = [one for lag in lags if (one := _best_peer(groups, lag, budget)) is not None]
    _compare(comparisons, groups, budget, commit)
    failed = sum(not evaluation.ok for evaluation in landscape.evaluations)
    return {
        "name": short_name(name),
        "key": landscape.key,
        "held_out": is_held_out(name),
        "problem": "" if landscape.problem is None else landscape.problem.key,
        "device": landscape.device.name,
        "predicted": landscape.device.predicted,
        "configs": len(landscape.evaluations),
        "failed": round(failed / len(landscape.evaluations), _DIGITS),
        "optimum_us": median_us(landscape.best),
        "comparisons": comparisons,
        "entries": entries,
    }


def short_name(name: str) -> str:
    """Returns the name of a landscape's file without folder and suffix."""
    return Path(name).name.removesuffix(SUFFIX)


def add_commit(record: dict[str, Any], name: str, runs: Sequence[Run], budget: int, commit: str) -> None:
    """Adds runs of a further commit's judged strategy to the record of a landscape.

    Raises:
        UsageError: The record is of another landscape.
    """
    if landscape_of(name).key != record["key"]:
        raise UsageError(f"{name} is not the landscape {record['name']} of the report")
    groups = _grouped(name, runs)
    record["entries"] += [_entry(group, budget, commit) for group in groups.values()]
    _compare(record["comparisons"], groups, budget, commit)


def area(run: Run, budget: int) -> float:
    """Returns the mean, over the evaluations 1 to the budget, of the best so far as a share of the optimum.

    A run that ends early, because its strategy stops, keeps its last value.
    """
    if not run.shares:
        return 0.0
    shares = run.shares[:budget]
    return float(sum(shares) + (budget - len(shares)) * shares[-1]) / budget


def evaluations_to(run: Run, near: float) -> float:
    """Returns the evaluations until the best is within a relative distance of the optimum; infinity for never."""
    return next((count for count, share in enumerate(run.shares, 1) if share >= 1 / (1 + near)), math.inf)


def _grouped(name: str, runs: Sequence[Run]) -> _Groups:
    """Returns the runs on one landscape by what they share; strategies with few of them are left out."""
    groups: _Groups = {}
    for run in runs:
        if run.task.landscape == name:
            groups.setdefault(run.task.entry, []).append(run)
    least = min(LEAST_SEEDS, max(map(len, groups.values()), default=0))
    return {key: group for key, group in groups.items() if len(group) >= least}


def _entry(runs: Sequence[Run], budget: int, commit: str) -> dict[str, Any]:
    task = runs[0].task
    reached = [evaluations_to(run, 0.02) <= budget for run in runs]
    return {
        "tuner": task.tuner,
        "strategy": task.strategy,
        "order": task.order,
        "lag": task.lag,
        "commit": commit if task.tuner == OURS else "",
        "seeds": len(runs),
        "evaluations": {str(near): _quartiles([evaluations_to(run, near) for run in runs]) for near in NEAR},
        "auc": [round(value, _DIGITS) for value in np.quantile([area(run, budget) for run in runs], (0.25, 0.5, 0.75))],
        "within_2_percent": round(sum(reached) / len(runs), _DIGITS),
        "cpu_ms_per_evaluation": round(
            1e3 * sum(run.seconds for run in runs) / max(1, sum(len(run.shares) for run in runs)), 2
        ),
        "curve": [round(float(np.median([_share_at(run, n) for run in runs])), _DIGITS) for n in range(1, budget + 1)],
    }


def _best_peer(groups: _Groups, lag: int, budget: int) -> dict[str, Any] | None:
    """Returns the peer whose median AUC is the largest at one lag, and the fewest evaluations to 5 % of any peer."""
    peers = [group for (tuner, _, _, at), group in groups.items() if tuner != OURS and at == lag]
    if not peers:
        return None
    best = max(peers, key=lambda group: float(np.median([area(run, budget) for run in group])))
    needed = [_quartiles([evaluations_to(run, NEAR[0]) for run in group])[1] for group in peers]
    task = best[0].task
    return {
        "lag": lag,
        "peer": [task.tuner, task.strategy, task.order],
        "areas": [round(area(run, budget), _DIGITS) for run in best],
        "fewest": min((count for count in needed if count is not None), default=None),
        "judged": [],
    }


def _compare(comparisons: Sequence[dict[str, Any]], groups: _Groups, budget: int, commit: str) -> None:
    """Adds the test of a commit's judged strategy against the best peer of each lag."""
    from scipy.stats import mannwhitneyu

    for comparison in comparisons:
        own = groups.get((OURS, JUDGED, "", comparison["lag"]))
        if own is None:
            continue
        ours, theirs = [round(area(run, budget), _DIGITS) for run in own], comparison["areas"]
        test = mannwhitneyu(ours, theirs, alternative="two-sided")
        better = round(float(test.statistic) / (len(ours) * len(theirs)), _DIGITS)
        comparison["judged"].append({"commit": commit, "better": better, "p": float(f"{test.pvalue:.2g}")})


def _share_at(run: Run, count: int) -> float:
    return run.shares[min(count, len(run.shares)) - 1] if run.shares else 0.0


def _quartiles(values: Sequence[float]) -> list[float | None]:
    """Returns lower quartile, median and upper quartile: values that occur, the worse of two; None for infinity."""
    ordered = sorted(values)
    picked = [ordered[math.ceil(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75)]
    return [None if value == math.inf else value for value in picked]
