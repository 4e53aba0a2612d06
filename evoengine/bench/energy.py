"""Energy per call, from the driver's energy counter around a long loop of graph replays."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from evoengine.bench.gpu_monitor import Monitor
from evoengine.device.protocols import KernelStopwatch

LOOP_S: Final = 0.1
"""Minimum duration of the loop. The counter of most GPUs is updated every 20 ms to 100 ms."""

_SPIN_S: Final = 0.002
"""Duration of the replays between two readings, within which a step of the counter is located: 2 % of the loop."""

_STALE_S: Final = 0.5
"""A counter that has not changed for this long is treated as absent."""


def energy_per_call_uj(
    stopwatch: KernelStopwatch, monitor: Monitor, clock: Callable[[], float] = time.perf_counter
) -> float | None:
    """Measures the energy of the whole GPU (chip, memory, board; idle power included) per call, in microjoules.

    The loop begins just after the counter has changed and ends at the first change after at least :data:`LOOP_S`, so
    that its coarse steps do not matter; the calls in between are counted.

    Args:
        stopwatch: Stopwatch of warm graph replays.
        monitor: GPU monitor.
        clock: Clock in seconds.

    Returns:
        Microjoules per call; None if the driver does not report energy.

    Raises:
        LaunchError: The kernel faulted.
    """
    if monitor.energy_mj() is None:
        return None
    replays = _replays_per_spin(stopwatch, clock)
    start_mj, _ = _spin_to_step(stopwatch, replays, monitor, clock, 0.0)
    end_mj, spins = _spin_to_step(stopwatch, replays, monitor, clock, LOOP_S)
    if start_mj is None or end_mj is None or end_mj <= start_mj:
        return None
    return (end_mj - start_mj) * 1e3 / (spins * replays * stopwatch.calls)


def _replays_per_spin(stopwatch: KernelStopwatch, clock: Callable[[], float]) -> int:
    stopwatch.spin(1)
    start_s = clock()
    stopwatch.spin(1)
    return max(1, int(_SPIN_S / max(clock() - start_s, 1e-6)))


def _spin_to_step(
    stopwatch: KernelStopwatch, replays: int, monitor: Monitor, clock: Callable[[], float], at_least_s: float
) -> tuple[int | None, int]:
    """Replays until the counter changes after at least ``at_least_s``.

    Returns:
        The counter, None when it did not change in time; and the number of spins.
    """
    start_s = clock()
    last = monitor.energy_mj()
    spins = 0
    while clock() - start_s < at_least_s + _STALE_S:
        stopwatch.spin(replays)
        spins += 1
        now = monitor.energy_mj()
        if now != last and clock() - start_s >= at_least_s:
            return now, spins
        last = now
    return None, spins
