"""Lines of the closing summary: the best row and the champion, run time, measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evoengine.engine.priors import Priors
from evoengine.leaderboard.records import Row
from evoengine.search.measurement_stats import MeasurementStats
from evoengine.search.settings import SearchResult


def standing_lines(result: SearchResult, *, predicted: bool, replayed: bool) -> Iterator[str]:
    """This run's best row, the champion, why they differ, and the gain that a challenger needed.

    Args:
        result: Result of the search.
        predicted: Whether times are predictions.
        replayed: Whether results came from a landscape.
    """
    best, champion = result.best, result.champion
    if best is not None:
        yield f"this run  {_time_of(best)}, row {best.id}"
    elif champion is not None:
        yield "this run  added no correct row"
    if result.leader is not None:
        yield (
            f"leader    {_time_of(result.leader)}, row {result.leader.id}: becomes champion after its "
            "compute-sanitizer check, which the next search for this problem on this GPU runs first"
        )
    if champion is not None:
        same = ", the same row" if best is not None and best.id == champion.id else ""
        yield f"champion  {_time_of(champion)}, row {champion.id}{same}"
    elif best is None and result.elites:
        yield f"fastest   {_time_of(result.elites[0])}, row {result.elites[0].id}"
    if result.difference:
        yield f"why       {result.difference}"
    if best is None and champion is None:
        return
    needed = f"a gain of {result.accept_threshold:.1%}" if result.accept_threshold else "any gain"
    why = "" if result.accept_threshold else " (replay)" if replayed else " (predictions do not vary)" * predicted
    yield f"accept    {needed} replaces the champion{why}"


def _time_of(row: Row) -> str:
    time = f"{row.median_us:.2f} us {'predicted' if row.predicted else 'measured'} on {row.device}"
    return time if row.speedup is None else f"{time}, {row.speedup:.2f}x SDPA"


def times_text(rows: Sequence[Row]) -> str:
    """Range of the times of rows that are all predicted or all measured."""
    times = [row.median_us for row in rows if row.median_us is not None]
    if not times:
        return "no time"
    kind = "predicted" if rows[0].predicted else "measured"
    low, high = f"{min(times):.2f}", f"{max(times):.2f}"
    return f"{low} us {kind}" if low == high else f"{low} to {high} us {kind}"


def effort_lines(result: SearchResult) -> Iterator[str]:
    """Stage times, device load, overhead, and for measurements racing and throttling."""
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.stage_seconds.items())
    yield f"stages    {stages}; sums over candidates; workers run in parallel"
    noun, mean = ("device", "") if result.devices == 1 else (f"{result.devices} device workers", ", on average")
    yield (
        f"load      {noun} busy {result.device_share:.0%} of the time{mean}; "
        f"overhead {result.overhead_ms_per_trial:.0f} ms per candidate (strategy and database)"
    )
    for reason in result.lost:
        yield f"lost      {reason}"
    if result.skipped:
        yield f"skipped   {result.skipped} configs that the latency model predicts to be far slower than the best"
    if result.measurements.measured:
        yield from _measurement_lines(result.measurements)


def priors_text(priors: Priors, tried: Mapping[str, int]) -> str:
    """Names the prior knowledge that a search used, and what was off.

    Args:
        priors: Priors in force.
        tried: Number of configs that each prior put first, for those that do.
    """
    used = [f"{name} ({_configs(tried[name])})" if name in tried else name for name in priors.on]
    off = f"; off: {', '.join(priors.off)}" if priors.off else ""
    return f"{', '.join(used) or 'none'}{off}"


def _configs(count: int) -> str:
    return f"{count} config{'' if count == 1 else 's'} tried first" if count else "none known"


def _measurement_lines(stats: MeasurementStats) -> Iterator[str]:
    full = stats.measured - stats.pruned
    text = f"racing    {full} timed in full, {stats.pruned} stopped early"
    if stats.pruned:
        text += f" after {stats.pruned_samples / stats.pruned:.1f} samples on average"
    yield text
    if len(stats.by_gpu) > 1:
        yield f"GPUs      {', '.join(f'{count} measured by {gpu}' for gpu, count in sorted(stats.by_gpu.items()))}"
    if stats.missing:
        yield f"telemetry none: {stats.missing}"
        return
    facts = [f"{stats.discarded} samples discarded and repeated because the GPU was throttled"]
    if stats.throttled:
        facts.append(f"{stats.throttled} candidates still throttled")
    if stats.sm_mhz is not None:
        facts.append(f"SM clock {stats.sm_mhz[0]} to {stats.sm_mhz[1]} MHz")
    if stats.hottest_c is not None:
        facts.append(f"at most {stats.hottest_c} C")
    yield f"telemetry {', '.join(facts)}"
