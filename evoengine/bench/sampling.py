"""A measurement: blocks of interleaved rounds, between which the GPU is looked at and the race is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.bench.racing import Drop, Race
from evoengine.bench.telemetry import Monitor
from evoengine.bench.timer import sample_interleaved
from evoengine.device.protocols import Stopwatch
from evoengine.model import GpuReading, Telemetry

BLOCK: Final = 10
"""Rounds between two looks at the GPU: some milliseconds, in which clocks hardly change."""

RETRIES: Final = 3
"""Blocks of one measurement that may be thrown away because the GPU was throttled around them. After that samples are
kept and marked: a GPU that is always at its power limit can be tuned for all the same."""

_Round = tuple[float, ...]
"""One sample of each stopwatch."""


@dataclass(frozen=True)
class Sampled:
    """What a measurement gave."""

    columns: tuple[tuple[float, ...], ...]
    """Microseconds, one tuple per stopwatch, all equally long."""
    telemetry: Telemetry
    drop: Drop | None = None
    """Why the first stopwatch's kernel is out of the race; then there are fewer samples than were asked for."""


@dataclass
class Patience:
    """How many blocks the next measurement in this process may throw away.

    A GPU that stays throttled whatever is thrown away is at its limit, as one is that runs large kernels without a
    pause; retries would only double the time. So there are none until a measurement is free of throttling.
    """

    retries: int = RETRIES

    def saw(self, telemetry: Telemetry) -> None:
        """Takes note of a measurement."""
        self.retries = 0 if telemetry.throttled else RETRIES


def take_samples(
    stopwatches: Sequence[Stopwatch],
    samples: int,
    warmup: int,
    monitor: Monitor,
    race: Race | None = None,
    retries: int = RETRIES,
) -> Sampled:
    """Samples all stopwatches in turns, block by block.

    The driver is asked before and after each block, never within one. A block around which the GPU was throttled is
    thrown away and taken again, at most ``retries`` times.

    Args:
        stopwatches: the first is the candidate's, the second, if any, the baseline's.
        samples: rounds to keep.
        warmup: rounds before the first block that are not kept.
        monitor: of the GPU.
        race: looked at after every round; None measures in full.
        retries: blocks that may be thrown away.
    """
    sample_interleaved(stopwatches, 0, warmup)
    kept: list[_Round] = []
    before = monitor.read()
    bad_before = before.throttled
    bad_blocks = discarded = 0
    while len(kept) < samples:
        block = _take_block(stopwatches, kept, min(BLOCK, samples - len(kept)), race)
        bad_after = monitor.throttled()
        if bad_before or bad_after:
            bad_blocks += 1
            if bad_blocks <= retries:
                discarded += len(block)
                bad_before = bad_after
                continue
        bad_before = bad_after
        kept += block
        drop = _judge(kept, race)
        if drop is not None:
            return Sampled(_columns(kept), _telemetry(monitor, before, discarded, throttled=bad_blocks > retries), drop)
    return Sampled(_columns(kept), _telemetry(monitor, before, discarded, throttled=bad_blocks > retries))


def _take_block(
    stopwatches: Sequence[Stopwatch], kept: Sequence[_Round], rounds: int, race: Race | None
) -> list[_Round]:
    """One block; shorter when the race is decided within it."""
    block: list[_Round] = []
    while len(block) < rounds and (not block or _judge([*kept, *block], race) is None):
        backwards = (len(kept) + len(block)) % 2 == 1  # so that no one always follows the same rival
        watches = reversed(stopwatches) if backwards else stopwatches
        taken = tuple(watch.sample_us() for watch in watches)
        block.append(taken[::-1] if backwards else taken)
    return block


def _judge(rounds: Sequence[_Round], race: Race | None) -> Drop | None:
    return None if race is None else race.judge(*_columns(rounds)[:2])


def _columns(rounds: Sequence[_Round]) -> tuple[tuple[float, ...], ...]:
    return tuple(zip(*rounds, strict=True))


def _telemetry(monitor: Monitor, before: GpuReading, discarded: int, *, throttled: bool) -> Telemetry:
    after = monitor.read()
    return Telemetry(before, after, discarded, throttled, monitor.missing, monitor.gpu)
