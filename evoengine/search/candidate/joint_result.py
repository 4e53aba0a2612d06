"""Joint results of a workload: each problem is checked and timed by itself, and the results become one objective.

The objective is the weighted mean of the times. Its samples are the weighted means of the first samples of all
problems, of the second ones, and so on, so that its confidence interval and its duels are computed as any other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.model import Duel, PartTime, Problem, Status, Telemetry, Timing, Verdict
from evoengine.search.candidate.results import Examination
from evoengine.statistics import median_interval


def joint_examination(
    problems: Sequence[Problem], shares: Sequence[float], parts: Sequence[Examination]
) -> Examination:
    """Joins the examinations of one candidate on several problems.

    Args:
        problems: Problems of the workload.
        shares: Weights of their times, which sum to 1.
        parts: Examinations in the order of the problems, up to the first that failed.

    Returns:
        The failed examination, its reason prefixed with the problem's key, or one that joins all of them.
    """
    last, seconds = parts[-1], _stage_seconds(parts)
    if last.status is not Status.OK:
        reason = f"{problems[len(parts) - 1].key}: {last.reason}"
        return replace(last, reason=reason, timing=None, stage_seconds=seconds)
    notes = tuple(
        f"{problem.key}: {note}" for problem, part in zip(problems, parts, strict=True) for note in part.notes
    )
    verdicts = [part.verdict for part in parts if part.verdict is not None]
    timings = [part.timing for part in parts if part.timing is not None]
    verdict, timing = _joint_verdict(problems, verdicts), joint_timing(problems, shares, timings)
    return Examination(Status.OK, "", verdict, timing, seconds, notes)


def joint_timing(problems: Sequence[Problem], shares: Sequence[float], timings: Sequence[Timing]) -> Timing:
    """Returns the weighted mean of several timings of one method.

    Args:
        problems: Problems that were timed.
        shares: Weights that sum to 1.
        timings: One per problem, all measured or all predicted.
    """
    parts = tuple(
        PartTime(problem.key, share, t.median_us, t.low_us, t.high_us, t.baseline_us, t.baseline)
        for problem, share, t in zip(problems, shares, timings, strict=True)
    )
    first = timings[0]
    baselines = [timing.baseline_us for timing in timings if timing.baseline_us is not None]
    complete = len(baselines) == len(timings)
    names = dict.fromkeys(timing.baseline for timing in timings if timing.baseline)
    joint = replace(
        first,
        baseline_us=weighted_mean(shares, baselines) if complete else None,
        baseline=", ".join(names) if complete else "",
        telemetry=_joint_telemetry([timing.telemetry for timing in timings]),
        parts=parts,
    )
    if first.predicted:
        us = weighted_mean(shares, [timing.median_us for timing in timings])
        return replace(joint, median_us=us, low_us=us, high_us=us)
    samples = _sample_means(shares, [timing.samples_us for timing in timings])
    interval = median_interval(samples)
    return replace(joint, median_us=interval.median, low_us=interval.low, high_us=interval.high, samples_us=samples)


def joint_duel(shares: Sequence[float], duels: Sequence[Duel], threshold: float, *, predicted: bool) -> Duel:
    """Judges several duels as one: the first pairs of all problems make the first joint pair, and so on.

    Args:
        shares: Weights that sum to 1.
        duels: One per problem.
        threshold: Minimum relative speed-up needed to replace the champion.
        predicted: Whether the times are predictions.
    """
    ours = _sample_means(shares, [duel.challenger_us for duel in duels])
    theirs = _sample_means(shares, [duel.champion_us for duel in duels])
    if predicted:
        return judge_predictions(ours[0], theirs[0], threshold)
    telemetry = _joint_telemetry([duel.telemetry for duel in duels])
    return replace(judge_duel(ours, theirs, threshold), telemetry=telemetry)


def weighted_mean(shares: Sequence[float], values: Sequence[float]) -> float:
    """Returns the mean of one value per problem, for shares that sum to 1."""
    return sum(share * value for share, value in zip(shares, values, strict=True))


def _sample_means(shares: Sequence[float], columns: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(weighted_mean(shares, row) for row in zip(*columns, strict=False))  # slow problems have fewer


def _joint_verdict(problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict closest to its tolerance; its worst case is prefixed with its problem."""
    worst = max(range(len(verdicts)), key=lambda index: _closeness(verdicts[index]))
    verdict = verdicts[worst]
    case = f"{problems[worst].key}: {verdict.worst_case}"
    return replace(verdict, cases=sum(one.cases for one in verdicts), worst_case=case)


def _closeness(verdict: Verdict) -> float:
    return verdict.max_error / verdict.tolerance if verdict.tolerance else 0.0


def _joint_telemetry(each: Sequence[Telemetry | None]) -> Telemetry | None:
    known = [telemetry for telemetry in each if telemetry is not None]
    if not known:
        return None
    return Telemetry(
        before=known[0].before,
        after=known[-1].after,
        discarded=sum(telemetry.discarded for telemetry in known),
        throttled=any(telemetry.throttled for telemetry in known),
        missing=known[0].missing,
        gpu=known[0].gpu,
    )


def _stage_seconds(parts: Sequence[Examination]) -> Mapping[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.stage_seconds.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total
