"""Statistics of a run's measurements: racing, throttling, clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evoengine.model import Evaluation, Status, Telemetry


@dataclass(frozen=True)
class MeasurementStats:
    """Totals over the measured candidates of a run."""

    measured: int = 0
    """Candidates with timing samples."""
    samples: int = 0
    """Samples of these candidates."""
    pruned: int = 0
    """Candidates whose timing was stopped early by racing."""
    pruned_samples: int = 0
    """Samples of the pruned candidates."""
    discarded: int = 0
    """Samples discarded because the GPU was throttled."""
    throttled: int = 0
    """Candidates whose samples are affected by throttling after all retries."""
    sm_mhz: tuple[int, int] | None = None
    """Lowest and highest SM clock read."""
    hottest_c: int | None = None
    """Highest temperature read, in °C."""
    missing: str = ""
    """Reason why there is no telemetry; empty when there is, or when nothing was measured."""
    by_gpu: Mapping[str, int] = field(default_factory=dict)
    """Measured candidates per GPU UUID, where it is known."""

    def with_one(self, evaluation: Evaluation) -> MeasurementStats:
        """Returns the totals with one more evaluation; one without samples changes nothing."""
        timing = evaluation.timing
        if timing is None or timing.predicted or not timing.samples_us:
            return self
        count = len(timing.samples_us)
        pruned = evaluation.status is Status.PRUNED
        base = self if timing.telemetry is None else self._with_telemetry(timing.telemetry)
        return replace(
            base,
            measured=self.measured + 1,
            samples=self.samples + count,
            pruned=self.pruned + pruned,
            pruned_samples=self.pruned_samples + count * pruned,
        )

    def _with_telemetry(self, telemetry: Telemetry) -> MeasurementStats:
        readings = (telemetry.before, telemetry.after)
        clocks = [reading.sm_mhz for reading in readings if reading.sm_mhz is not None]
        degrees = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
        clocks += self.sm_mhz or ()
        degrees += [] if self.hottest_c is None else [self.hottest_c]
        known = {telemetry.gpu: self.by_gpu.get(telemetry.gpu, 0) + 1} if telemetry.gpu else {}
        return replace(
            self,
            discarded=self.discarded + telemetry.discarded,
            throttled=self.throttled + telemetry.throttled,
            sm_mhz=(min(clocks), max(clocks)) if clocks else None,
            hottest_c=max(degrees, default=None),
            missing=telemetry.missing,
            by_gpu={**self.by_gpu, **known},
        )
