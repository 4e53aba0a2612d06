"""Lines of the closing summary about run time and measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evoengine.engine.priors import Priors
from evoengine.search.measurement_stats import MeasurementStats
from evoengine.search.settings import SearchResult


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
