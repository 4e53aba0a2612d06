"""Predicted time of a launch: simulated SMs, and the schedule of the pieces of work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np

from evoengine.costmodel.l2_cache import SM_BYTES_PER_CLK
from evoengine.costmodel.simulation.machine import Resource, Timeline
from evoengine.costmodel.simulation.schedule import Array, PieceTimes, busiest_sm, by_round, by_ticket, in_order
from evoengine.target import Target

MOST_TILES: Final = 8
"""Most key tiles of a simulated piece of work; each further tile is assumed to take the same time."""
REMEMBERED: Final = 4096
"""Simulated SMs that a family keeps: configs that differ in the order of the work share them."""


@dataclass(frozen=True)
class CopyPath:
    """Path of the copies of an SM."""

    bytes_per_clk: float
    """From L2."""
    miss_clocks: float = 0.0
    """Time that a copy of keys or values takes longer in the mean because L2 does not hold all of them."""


SimulateSm = Callable[[tuple[int, ...], int, CopyPath], Timeline]
"""Simulates an SM: tiles of each CTA's pieces, CTAs on the SM, path of the copies."""
Order = Literal["first free", "tickets", "rounds", "snake"]
"""Assignment of pieces to slots: :func:`in_order`, :func:`by_ticket`, :func:`by_round` without or with ``snake``."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of work of a launch."""

    tiles: Array
    """Key tiles of each, in the order in which they start, ``[pieces]``."""
    order: Order


@dataclass(frozen=True)
class SimulatedLaunch:
    """Prediction of one launch."""

    clocks: float
    """Core clocks of the SM that ends last, from the start of its first CTA."""
    busy: Mapping[str, float]
    """Share of the time of a full SM for which each resource works, by the lower-case name of :class:`Resource`."""
    rounds: int
    """Pieces of work that the CTAs in one slot of an SM compute one after the other, at most."""
    edges: float
    """Clocks of CTAs that compute one tile each: what a launch takes beside the time in which its bytes arrive."""


def simulate_launch(
    run: SimulateSm, pieces: Pieces, resident: int, target: Target, l2_share: float, miss_clocks: float
) -> SimulatedLaunch:
    """Predicts a launch.

    Args:
        run: Simulation of an SM.
        pieces: Pieces of work.
        resident: CTAs that fit on an SM, at least one.
        target: Data sheet.
        l2_share: Share of the data sheet's L2 bandwidth that copies reach.
        miss_clocks: As of :class:`CopyPath`.
    """
    count = len(pieces.tiles)
    together = min(resident, math.ceil(count / target.sms))
    rate = min(SM_BYTES_PER_CLK, l2_share * target.l2_bytes_per_clk / min(target.sms, count))
    path = CopyPath(rate, miss_clocks)
    times, timeline = _piece_times(run, pieces.tiles, together, path)
    slots = together * target.sms
    loads = _ASSIGNED[pieces.order](times.of(pieces.tiles), slots)

    def typical(ctas: int) -> float:
        return float(_piece_times(run, pieces.tiles, ctas, path)[0].of(pieces.tiles.mean()))

    clocks = times.first + busiest_sm(loads, target.sms, typical)
    busy = {one.name.lower(): timeline.busy[one] / timeline.clocks for one in Resource}
    return SimulatedLaunch(clocks, busy, math.ceil(count / slots), run((1,), together, path).clocks)


_ASSIGNED: Final[Mapping[Order, Callable[[Array, int], Array]]] = {
    "first free": in_order,
    "tickets": by_ticket,
    "rounds": partial(by_round, snake=False),
    "snake": partial(by_round, snake=True),
}


def _piece_times(run: SimulateSm, tiles: Array, ctas: int, path: CopyPath) -> tuple[PieceTimes, Timeline]:
    """Simulates an SM for some pieces of work and splits their times into those of a piece and those of a tile."""
    most, least = int(tiles.max()), int(tiles.min())
    if most == least and most <= MOST_TILES:
        timeline = run((most, most), ctas, path)
        first, piece = _periods(timeline)
        return PieceTimes(first - piece, piece, 0.0), timeline
    long = max(2, min(most, MOST_TILES))
    short = max(1, long * 2 // 5)
    timeline = run((short, long, short), ctas, path)
    first, middle, last = _periods(timeline)
    tile = (middle - last) / (long - short)
    return PieceTimes(first - last, last - short * tile, tile), timeline


def _periods(timeline: Timeline) -> list[float]:
    """Times between the ends of the pieces, means of all agents that mark them."""
    ends = np.mean([marks for marks in timeline.marks if marks], axis=0)
    return [float(period) for period in np.diff(ends, prepend=0.0)]
