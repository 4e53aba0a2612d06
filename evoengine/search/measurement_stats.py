"""What the measurements of a run were like, in numbers: racing, throttling, clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evoengine.model import Evaluation, Status, Telemetry


@dataclass(frozen=True)
class MeasurementStats:
    """Sums over the measured candidates of a run."""

    measured: int = 0
    """Candidates with samples."""
    samples: int = 0
    """Their samples."""
    pruned: int = 0
    """Those among them that were dropped while they were timed."""
    pruned_samples: int = 0
    """Samples of these."""
    discarded: int = 0
    """Samples that were thrown away because the GPU was throttled."""
    throttled: int = 0
    """Candidates whose samples are not free of throttling for all that."""
    sm_mhz: tuple[int, int] | None = None
    """Lowest and highest SM clock that was read."""
    hottest_c: int | None = None
    """Highest temperature that was read."""
    missing: str = ""
    """Why there is no telemetry; empty when there is, and when nothing was measured."""
    by_gpu: Mapping[str, int] = field(default_factory=dict)
    """How many of them each GPU measured, by UUID, where that is known."""

    def with_one(self, evaluation: Evaluation) -> MeasurementStats:
        """The sums with one more evaluation."""
        timing = evaluation.timing
        if timing is None or timing.predicted or not timing.samples_us:
            return self
        count = len(timing.samples_us)
        pruned = evaluation.status is Status.PRUNED
        told = self if timing.telemetry is None else self._told(timing.telemetry)
        return replace(
            told,
            measured=self.measured + 1,
            samples=self.samples + count,
            pruned=self.pruned + pruned,
            pruned_samples=self.pruned_samples + count * pruned,
        )

    def _told(self, telemetry: Telemetry) -> MeasurementStats:
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
