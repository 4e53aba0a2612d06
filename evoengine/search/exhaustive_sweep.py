"""Recording a landscape: a search that only wants to know, over a uniform sample or the whole space.

It is the loop of a search with the strategy that learns nothing, so that compiling and measuring overlap, a killed
recording loses nothing and the same command goes on. What it stored becomes the landscape; this is the way from one to
the other.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from evoengine.leaderboard.store import Stored
from evoengine.model import Evaluation, Status
from evoengine.search.measurement_stats import MeasurementStats


def evaluations_by_family(stored: Sequence[Stored]) -> Mapping[str, tuple[Evaluation, ...]]:
    """The evaluations of each family; one that has the machine code of another has its outcome."""
    by_key = {entry.evaluation.config.key: entry.evaluation for entry in stored}
    families: dict[str, list[Evaluation]] = {}
    for entry in stored:
        evaluation = entry.evaluation
        first = by_key.get(evaluation.duplicate_of)
        if evaluation.status is Status.DUPLICATE:
            if first is None:
                continue
            evaluation = replace(evaluation, status=first.status, reason=first.reason, timing=first.timing)
        families.setdefault(evaluation.config.family, []).append(replace(evaluation, duplicate_of=""))
    return {family: tuple(evaluations) for family, evaluations in families.items()}


def describe_checks(evaluations: Iterable[Evaluation], *, small_cases: bool) -> str:
    """What the parity gate did, from the verdicts."""
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
    """Where the time of those that were judged went: the mean of each stage; empty where there is none."""
    judged = [evaluation.stage_seconds for evaluation in evaluations if "parity" in evaluation.stage_seconds]
    if not judged:
        return ""
    means = {name: statistics.fmean(seconds.get(name, 0.0) for seconds in judged) for name in judged[0]}
    stages = ", ".join(f"{mean * 1e3:.1f} ms {name}" for name, mean in means.items())
    return f"stages of {len(judged)} configs that reached the device, mean: {stages}"


def describe_baseline(evaluations: Iterable[Evaluation]) -> str:
    """The baseline and its median over all measurements; empty where none was timed."""
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
    """The clocks that were read meanwhile; empty where none was."""
    tally = MeasurementStats()
    for evaluation in evaluations:
        tally = tally.with_one(evaluation)
    return "; ".join(_clock_facts(tally))


def _clock_facts(tally: MeasurementStats) -> Iterator[str]:
    if len(tally.by_gpu) > 1:
        yield f"measured on {len(tally.by_gpu)} GPUs of one type"
    if tally.sm_mhz is not None:
        yield f"SM clock {tally.sm_mhz[0]} to {tally.sm_mhz[1]} MHz"
    if tally.hottest_c is not None:
        yield f"at most {tally.hottest_c} C"
    if tally.throttled:
        yield f"{tally.throttled} configs throttled for all retries"
