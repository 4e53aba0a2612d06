"""Statistics of finished runs: one record per landscape, and one per strategy, order and lag in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.landscape.landscape import median_us
from strategies.running import landscape_of
from strategies.tasks import NEAR, OURS, Run, is_held_out

JUDGED: Final = "evolution"
"""Strategy that is compared with all peers: the default of ``search``."""
_DIGITS: Final = 4


def landscape_report(name: str, runs: Sequence[Run], budget: int) -> dict[str, Any]:
    """Returns the record of one landscape."""
    landscape = landscape_of(name)
    here = [run for run in runs if run.task.landscape == name]
    groups: dict[tuple[str, str, str, int], list[Run]] = {}
    for run in here:
        groups.setdefault(run.task.entry, []).append(run)
    entries = [_entry(group, budget) for group in groups.values()]
    lags = sorted({entry["lag"] for entry in entries})
    failed = sum(not evaluation.ok for evaluation in landscape.evaluations)
    return {
        "name": Path(name).name.removesuffix(".landscape.xz"),
        "key": landscape.key,
        "held_out": is_held_out(name),
        "problem": "" if landscape.problem is None else landscape.problem.key,
        "device": landscape.device.name,
        "predicted": landscape.device.predicted,
        "configs": len(landscape.evaluations),
        "failed": round(failed / len(landscape.evaluations), _DIGITS),
        "optimum_us": median_us(landscape.best),
        "comparisons": [one for lag in lags if (one := _comparison(groups, lag, budget)) is not None],
        "entries": entries,
    }


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


def _entry(runs: Sequence[Run], budget: int) -> dict[str, Any]:
    task = runs[0].task
    reached = [evaluations_to(run, 0.02) <= budget for run in runs]
    return {
        "tuner": task.tuner,
        "strategy": task.strategy,
        "order": task.order,
        "lag": task.lag,
        "seeds": len(runs),
        "evaluations": {str(near): _quartiles([evaluations_to(run, near) for run in runs]) for near in NEAR},
        "auc": [round(value, _DIGITS) for value in np.quantile([area(run, budget) for run in runs], (0.25, 0.5, 0.75))],
        "within_2_percent": round(sum(reached) / len(runs), _DIGITS),
        "cpu_ms_per_evaluation": round(
            1e3 * sum(run.seconds for run in runs) / max(1, sum(len(run.shares) for run in runs)), 2
        ),
        "curve": [round(float(np.median([_share_at(run, n) for run in runs])), _DIGITS) for n in range(1, budget + 1)],
    }


def _comparison(groups: dict[tuple[str, str, str, int], list[Run]], lag: int, budget: int) -> dict[str, Any] | None:
    """Compares the judged strategy with the peer whose median AUC is the largest, at one lag."""
    from scipy.stats import mannwhitneyu

    own = groups.get((OURS, JUDGED, "", lag))
    peers = [group for (tuner, _, _, at), group in groups.items() if tuner != OURS and at == lag]
    if own is None or not peers:
        return None
    ours = [area(run, budget) for run in own]
    best = max(peers, key=lambda group: float(np.median([area(run, budget) for run in group])))
    theirs = [area(run, budget) for run in best]
    test = mannwhitneyu(ours, theirs, alternative="two-sided")
    task = best[0].task
    return {
        "lag": lag,
        "peer": [task.tuner, task.strategy, task.order],
        "better": round(float(test.statistic) / (len(ours) * len(theirs)), _DIGITS),
        "p": float(f"{test.pvalue:.2g}"),
    }


def _share_at(run: Run, count: int) -> float:
    return run.shares[min(count, len(run.shares)) - 1] if run.shares else 0.0


def _quartiles(values: Sequence[float]) -> list[float | None]:
    """Returns lower quartile, median and upper quartile: values that occur, the worse of two; None for infinity."""
    ordered = sorted(values)
    picked = [ordered[math.ceil(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75)]
    return [None if value == math.inf else value for value in picked]
