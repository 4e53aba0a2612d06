"""Takes the samples of one measurement, discards those taken while the GPU was throttled, and stops early in a race.

A round is one sample of each stopwatch; a measurement consists of blocks of rounds. The GPU's state is read between
blocks. Samples are discarded here only: the warm-up rounds, and blocks at whose start or end the GPU was throttled (for
a reason in :data:`evoengine.model.telemetry.THROTTLING`). No sample is discarded for its value.

Where kernels take long, the GPU rests after each round for as long as the round took. Without a pause it reaches its
power limit during a measurement, and the median depends on how many samples came before it got slower.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.bench.gpu_monitor import Monitor
from evoengine.bench.racing import Drop, Race
from evoengine.bench.timer import sample_interleaved
from evoengine.device.protocols import Stopwatch
from evoengine.model import GpuReading, Telemetry

BLOCK: Final = 10
"""Rounds between two readings of the GPU's state: a few milliseconds, in which clocks hardly change."""

RETRIES: Final = 3
"""Blocks of one measurement that may be discarded because the GPU was throttled. Later samples are kept and marked, so
that a GPU which is always at its power limit can still be tuned."""

_MIN_READINGS: Final = 6
"""Minimum number of readings of a sparse stopwatch in one measurement: fewer samples give no interval of a median."""

_STEADY_READINGS: Final = 3
"""The same where the GPU rests after each round: the baseline then takes the same time in every measurement."""

_FEW_THROTTLED: Final = 0.2
"""Share of throttled measurements up to which a GPU does not rest."""

_Round = tuple[float, ...]
"""One sample of each stopwatch."""


@dataclass(frozen=True)
class SampleSet:
    """The samples of one measurement."""

    columns: tuple[tuple[float, ...], ...]
    """Microseconds, one tuple per stopwatch, all equally long."""
    telemetry: Telemetry
    drop: Drop | None = None
    """Evidence for dropping the first stopwatch's kernel; there are then fewer samples than requested."""


@dataclass
class ThrottleHistory:
    """Knowledge about the GPU's power limit from earlier measurements in this process."""

    retries: int = RETRIES
    """Blocks that the next measurement may discard. A GPU that is still throttled after all retries is at its limit,
    and further retries would only double the time; so there are none until a measurement is free of throttling."""
    unrested: int = 0
    """Measurements in which the GPU did not rest."""
    throttled: int = 0
    """Measurements among them that were throttled."""

    @property
    def limits(self) -> bool:
        """Whether load without rests makes the GPU slower; memory-bound kernels hardly reach the power limit."""
        return self.throttled > _FEW_THROTTLED * self.unrested

    def observe(self, telemetry: Telemetry, *, rested: bool = False) -> None:
        """Records a measurement."""
        self.retries = 0 if telemetry.throttled else RETRIES
        if not rested:
            self.unrested += 1
            self.throttled += telemetry.throttled or telemetry.discarded > 0


class SparseStopwatch:
    """A stopwatch that is read in every few rounds only, and repeats its latest sample in the others.

    It is for a baseline that takes several times as long as the candidate beside it, as SDPA does under a sliding
    window, which it computes with a mask.

    Args:
        stopwatch: Stopwatch to read.
        rounds: Number of rounds for one reading.
    """

    def __init__(self, stopwatch: Stopwatch, rounds: int) -> None:
        self._stopwatch, self._rounds = stopwatch, rounds
        self._latest_us = 0.0
        self._turn = 0

    def sample_us(self) -> float:
        if self._turn % self._rounds == 0:
            self._latest_us = self._stopwatch.sample_us()
        self._turn += 1
        return self._latest_us

    def close(self) -> None:
        self._stopwatch.close()


def rounds_per_reading(own: float, other: float, samples: int) -> int:
    """Returns the number of rounds per reading of a baseline whose samples then take about as long as the candidate's.

    Args:
        own: Duration of the candidate's sample.
        other: Duration of the baseline's sample, in the same unit.
        samples: Number of rounds of the measurement.
    """
    most = max(1, samples // _MIN_READINGS)
    return min(most, max(1, int(other / own)))


def rounds_per_steady_reading(samples: int) -> int:
    """Returns the number of rounds per reading of a baseline where the GPU rests after each round."""
    return max(1, samples // _STEADY_READINGS)


def take_samples(
    stopwatches: Sequence[Stopwatch],
    samples: int,
    warmup: int,
    monitor: Monitor,
    race: Race | None = None,
    retries: int = RETRIES,
    *,
    rests: bool = False,
) -> SampleSet:
    """Samples all stopwatches interleaved, block by block.

    The driver is queried before and after each block, never within one. A block during which the GPU was throttled is
    discarded and repeated, at most ``retries`` times.

    Args:
        stopwatches: The candidate's stopwatch, followed by the baseline's if there is one.
        samples: Number of rounds to keep.
        warmup: Number of warm-up rounds, which are discarded.
        monitor: GPU monitor.
        race: Race that is evaluated after every round; None measures in full.
        retries: Number of blocks that may be discarded.
        rests: Whether the GPU rests after each round that is kept, for as long as the round took.
    """
    sample_interleaved(stopwatches, 0, warmup)
    kept: list[_Round] = []
    before = monitor.read()
    bad_before = before.throttled
    bad_blocks = discarded = 0
    drop: Drop | None = None
    while drop is None and len(kept) < samples:
        block = _take_block(stopwatches, kept, min(BLOCK, samples - len(kept)), race, rests=rests)
        bad_after = monitor.throttled()
        bad, bad_before = bad_before or bad_after, bad_after
        bad_blocks += bad
        if bad and bad_blocks <= retries:
            discarded += len(block)
        else:
            kept += block
            drop = _judge(kept, race)
    return SampleSet(_columns(kept), _telemetry(monitor, before, discarded, throttled=bad_blocks > retries), drop)


def _take_block(
    stopwatches: Sequence[Stopwatch], kept: Sequence[_Round], rounds: int, race: Race | None, *, rests: bool
) -> list[_Round]:
    """Takes one block; it is shorter when the race is decided within it."""
    block: list[_Round] = []
    while len(block) < rounds and (not block or _judge([*kept, *block], race) is None):
        backwards = (len(kept) + len(block)) % 2 == 1  # so that no kernel always follows the same one
        watches = reversed(stopwatches) if backwards else stopwatches
        start_s = time.perf_counter()
        taken = tuple(watch.sample_us() for watch in watches)
        if rests:
            time.sleep(time.perf_counter() - start_s)
        block.append(taken[::-1] if backwards else taken)
    return block


def _judge(rounds: Sequence[_Round], race: Race | None) -> Drop | None:
    return None if race is None else race.judge(*_columns(rounds)[:2])


def _columns(rounds: Sequence[_Round]) -> tuple[tuple[float, ...], ...]:
    return tuple(zip(*rounds, strict=True))


def _telemetry(monitor: Monitor, before: GpuReading, discarded: int, *, throttled: bool) -> Telemetry:
    after = monitor.read()
    return Telemetry(before, after, discarded, throttled, monitor.missing, monitor.gpu)
