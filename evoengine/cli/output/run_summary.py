"""What a search took, and how its measurements went: the closing summary's lines about them."""

from __future__ import annotations

from collections.abc import Iterator

from evoengine.search.measurement_stats import MeasurementStats
from evoengine.search.settings import SearchResult


def effort_lines(result: SearchResult) -> Iterator[str]:
    """Stage times, how busy the devices were, our own overhead; and of measurements, racing and throttling."""
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.stage_seconds.items())
    yield f"stages    {stages}; sums over candidates, workers run at the same time"
    noun, mean = ("device", "") if result.devices == 1 else (f"{result.devices} device workers", ", on average")
    yield (
        f"load      {noun} {result.device_share:.0%} of the time with a candidate{mean}; "
        f"strategy and store {result.overhead_ms_per_trial:.0f} ms a candidate, "
        f"{result.overhead_of_work:.1%} of the work, in {result.overhead_share:.0%} of the time"
    )
    for reason in result.lost:
        yield f"lost      {reason}"
    if result.skipped:
        yield f"skipped   {result.skipped} configs that the latency model expects to be far slower than the best"
    if result.measurements.measured:
        yield from _measurement_lines(result.measurements)


def _measurement_lines(tally: MeasurementStats) -> Iterator[str]:
    full = tally.measured - tally.pruned
    text = f"racing    {full} timed in full, {tally.pruned} dropped"
    if tally.pruned:
        text += f" after {tally.pruned_samples / tally.pruned:.1f} samples on average"
    yield text
    if len(tally.by_gpu) > 1:
        yield f"GPUs      {', '.join(f'{count} measured by {gpu}' for gpu, count in sorted(tally.by_gpu.items()))}"
    if tally.missing:
        yield f"telemetry none: {tally.missing}"
        return
    facts = [f"{tally.discarded} samples discarded and taken again because the GPU was throttled"]
    if tally.throttled:
        facts.append(f"{tally.throttled} candidates throttled all the same")
    if tally.sm_mhz is not None:
        facts.append(f"SM clock {tally.sm_mhz[0]} to {tally.sm_mhz[1]} MHz")
    if tally.hottest_c is not None:
        facts.append(f"at most {tally.hottest_c} C")
    yield f"telemetry {', '.join(facts)}"
