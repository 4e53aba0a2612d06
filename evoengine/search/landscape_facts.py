"""Facts about a recording that its landscape stores: outcomes by family, and how they were checked and timed.

A recording is a search, so that compiling and measuring overlap and a killed recording is resumed by the same command.
Its stored evaluations become the landscape.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from evoengine.leaderboard.store import Stored
from evoengine.model import Evaluation, executed_by_config
from evoengine.search.measurement_stats import MeasurementStats


def evaluations_by_family(stored: Sequence[Stored]) -> Mapping[str, tuple[Evaluation, ...]]:
    """Evaluations of each family; a duplicate gets the outcome of the kernel that it repeats."""
    evaluations = [entry.evaluation for entry in stored]
    executed = executed_by_config(evaluations)
    families: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        first = executed.get(evaluation.config.key)
        if first is None:  # a duplicate of a kernel that is not stored
            continue
        outcome = replace(evaluation, status=first.status, reason=first.reason, timing=first.timing, duplicate_of="")
        families.setdefault(evaluation.config.family, []).append(outcome)
    return {family: tuple(evaluations) for family, evaluations in families.items()}


def describe_checks(evaluations: Iterable[Evaluation], *, small_cases: bool) -> str:
    """Describes the parity gate's checks, from the verdicts of the correct configs.

    Args:
        evaluations: Recorded evaluations.
        small_cases: Whether the small cases were part of the gate.
    """
    verdicts = [evaluation.verdict for evaluation in evaluations if evaluation.ok and evaluation.verdict is not None]
    if not verdicts:
        return "no config passed"
    cases = Counter(verdict.cases for verdict in verdicts)
    seeds = sorted({str(verdict.inputs_seed) for verdict in verdicts})
    which = "small cases, then the problem itself" if small_cases else "the problem itself"
    counts = ", ".join(f"{number} kernels faced {count} cases" for count, number in sorted(cases.items()))
    return (
        f"parity gate before timing: {which}; measured kernels once more afterwards; {counts}; seeds {' '.join(seeds)}"
    )


def describe_stages(evaluations: Iterable[Evaluation]) -> str:
    """Describes the mean duration of each stage, over the configs that reached the device; empty if none did."""
    judged = [evaluation.stage_seconds for evaluation in evaluations if "parity" in evaluation.stage_seconds]
    if not judged:
        return ""
    names = dict.fromkeys(chain(*judged))  # the first config may have failed before the later stages
    means = {name: statistics.fmean(seconds.get(name, 0.0) for seconds in judged) for name in names}
    stages = ", ".join(f"{mean * 1e3:.1f} ms {name}" for name, mean in means.items())
    return f"stages of {len(judged)} configs that reached the device, mean: {stages}"


def describe_baseline(evaluations: Iterable[Evaluation]) -> str:
    """Describes the baseline and its median time over all measurements; empty if none was timed."""
    known = [
        (timing.baseline, timing.baseline_us)
        for evaluation in evaluations
        if (timing := evaluation.timing) is not None and timing.baseline_us is not None
    ]
    if not known:
        return ""
    name = Counter(name for name, _ in known).most_common(1)[0][0]
    return f"{name}, median {statistics.median(us for _, us in known):.4g} us over {len(known)} measurements"


def describe_clocks(evaluations: Iterable[Evaluation]) -> str:
    """Describes the clocks and temperatures read during the measurements; empty if none was read."""
    stats = MeasurementStats()
    for evaluation in evaluations:
        stats = stats.with_one(evaluation)
    return "; ".join(_clock_facts(stats))


def _clock_facts(stats: MeasurementStats) -> Iterator[str]:
    if len(stats.by_gpu) > 1:
        yield f"measured on {len(stats.by_gpu)} GPUs of one type"
    if stats.sm_mhz is not None:
        yield f"SM clock {stats.sm_mhz[0]} to {stats.sm_mhz[1]} MHz"
    if stats.hottest_c is not None:
        yield f"at most {stats.hottest_c} C"
    if stats.throttled:
        yield f"{stats.throttled} configs throttled for all retries"
