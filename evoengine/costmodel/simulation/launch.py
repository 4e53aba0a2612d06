"""Predicted time of a launch: simulated SMs, and the schedule of the pieces of work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from evoengine.costmodel.simulation.machine import Timeline
from evoengine.costmodel.simulation.schedule import Array, PieceTimes, busiest_sm, by_round, by_ticket, in_order
from evoengine.costmodel.simulation.warpgroup import SimulationConstants
from evoengine.target import Target

MOST_TILES: Final = 8
"""Longest simulated piece of work; a tile more takes the same time again."""
_SM_BYTES_PER_CLK: Final = 64
"""Bytes per clock between L2 and one SM: CUDA's tuning guides."""

Run = Callable[[Sequence[int], int, float], Timeline]
"""Simulates an SM: tiles of each CTA's pieces, CTAs on the SM, bytes per clock from L2."""
Order = Literal["first free", "tickets", "rounds", "snake"]
"""Next piece to the slot that is free first, or a share for each CTA, in alternating order with ``snake``."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of work of a launch."""

    tiles: Array
    """Key tiles of each, in the order in which they start, ``[pieces]``."""
    order: Order


def launch_clocks(
    run: Run, pieces: Pieces, resident: int, target: Target, constants: SimulationConstants
) -> float:
    """Computes the clocks of the SM that ends last.

    Args:
        run: Simulation of an SM.
        pieces: Pieces of work.
        resident: CTAs that fit on an SM.
        target: Data sheet.
        constants: Constants of the simulation.
    """
    count = len(pieces.tiles)
    together = min(resident, math.ceil(count / target.sms))
    rate = _copy_rate(min(target.sms, count), target, constants)
    times = [_piece_times(run, pieces.tiles, ctas, rate) for ctas in range(1, together + 1)]
    slots = together * target.sms
    if pieces.order == "first free":
        loads = in_order(pieces.tiles, slots, times[-1])
    elif pieces.order == "tickets":
        loads = by_ticket(pieces.tiles, slots, times[-1])
    else:
        loads = by_round(pieces.tiles, slots, times[-1], snake=pieces.order == "snake")
    typical = pieces.tiles.mean()
    return times[-1].first + busiest_sm(loads, target.sms, [float(each.of(typical)) for each in times])


def _copy_rate(active: int, target: Target, constants: SimulationConstants) -> float:
    return min(_SM_BYTES_PER_CLK, constants.l2_share * target.l2_bytes_per_clk / active)


def _piece_times(run: Run, tiles: Array, ctas: int, rate: float) -> PieceTimes:
    """Simulates an SM for some pieces of work and splits their times into those of a piece and those of a tile."""
    most, least = int(tiles.max()), int(tiles.min())
    if most == least and most <= MOST_TILES:
        first, piece = _periods(run([most, most], ctas, rate))
        return PieceTimes(first - piece, piece, 0.0)
    long = min(most, MOST_TILES)
    short = max(1, long * 2 // 5)
    first, mid, last = _periods(run([short, long, short], ctas, rate))
    tile = (mid - last) / max(1, long - short)
    return PieceTimes(first - last, last - short * tile, tile)


def _periods(timeline: Timeline) -> list[float]:
    """Times between the ends of the pieces, means of all agents that mark them."""
    ends = np.mean([marks for marks in timeline.marks if marks], axis=0)
    return [float(period) for period in np.diff(ends, prepend=0.0)]
