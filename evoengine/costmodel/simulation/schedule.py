"""Time of a whole launch from the times of its pieces of work: which CTA computes which piece, on which SM.

A piece of work is a query tile of one head; its time grows with the number of its key tiles. The times come from
simulations of an SM with a number of CTAs (:class:`PieceTimes`). Pieces are assigned to the slots of all SMs as the
kernel's schedule and the GPU assign them; an SM whose CTAs end at different times is faster for those that remain.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LAST_ROUNDS: Final = 16
"""Pieces for each slot that are assigned one by one."""


@dataclass(frozen=True)
class PieceTimes:
    """Clocks of the pieces of one CTA, where a number of CTAs share the SM."""

    first: float
    """Start of the CTA: what its first piece takes in addition."""
    piece: float
    """A piece without its tiles."""
    tile: float

    def of(self, tiles: Array) -> Array:
        """Computes the clocks of pieces that follow others."""
        return self.piece + self.tile * tiles


def in_order(clocks: Array, slots: int) -> Array:
    """Assigns each piece, in order, to the slot that is free first.

    Args:
        clocks: Clocks of the pieces ``[pieces]``, in the order in which they start.
        slots: Number of CTAs that run at once.

    Returns:
        Clocks of each slot, ``[slots]``.
    """
    if len(clocks) == 0 or clocks.min() == clocks.max():
        return by_round(clocks, slots, snake=False)
    if len(clocks) > LAST_ROUNDS * slots:
        return _balanced(clocks, slots, in_order)
    loads = _first_pieces(clocks, slots)
    ends = [(load, slot) for slot, load in enumerate(loads)]
    heapq.heapify(ends)
    for piece in clocks[slots:].tolist():
        load, slot = ends[0]
        loads[slot] = load + piece
        heapq.heapreplace(ends, (loads[slot], slot))
    return np.array(loads)


def by_ticket(clocks: Array, slots: int) -> Array:
    """Assigns each slot its next piece when it begins one: the number is drawn early, so that its data can be loaded.

    Arguments and result as of :func:`in_order`.
    """
    if len(clocks) > LAST_ROUNDS * slots:
        return _balanced(clocks, slots, by_ticket)
    loads = _first_pieces(clocks, slots)
    draws = [(0.0, slot) for slot in range(slots)]
    for piece in clocks[slots:].tolist():
        slot = draws[0][1]
        heapq.heapreplace(draws, (loads[slot], slot))
        loads[slot] += piece
    return np.array(loads)


def _balanced(clocks: Array, slots: int, assigned: Callable[[Array, int], Array]) -> Array:
    """Assigns only the pieces of the last rounds one by one: those before are spread evenly over the slots."""
    last = LAST_ROUNDS * slots
    before = float(clocks[:-last].sum())
    return assigned(clocks[-last:], slots) + before / slots


def _first_pieces(clocks: Array, slots: int) -> list[float]:
    loads = np.zeros(slots)
    loads[: len(clocks)] = clocks[:slots]
    return list(loads.tolist())


def by_round(clocks: Array, slots: int, *, snake: bool) -> Array:
    """Assigns each slot one piece of every round, every second round in opposite order with ``snake``.

    Arguments and result as of :func:`in_order`.
    """
    numbers = np.arange(len(clocks))
    rounds, places = numbers // slots, numbers % slots
    if snake:
        places = np.where(rounds % 2 == 1, slots - 1 - places, places)
    return np.bincount(places, clocks, slots).astype(np.float64, copy=False)


def busiest_sm(loads: Array, sms: int, clocks_of_piece: Callable[[int], float]) -> float:
    """Computes the clocks of the SM that ends last.

    Args:
        loads: Clocks of each slot while all slots of its SM are taken, ``[slots]``; slot ``s`` is on SM ``s % sms``.
        sms: Number of SMs.
        clocks_of_piece: Clocks of a typical piece by the number of CTAs on the SM.
    """
    ends = np.sort(loads.reshape(-1, sms), axis=0)  # ascending on each SM
    clocks = ends[0]
    for rank in range(1, len(ends)):
        alone = ends[rank] - ends[rank - 1]
        if alone.any():
            faster = clocks_of_piece(len(ends) - rank) / clocks_of_piece(len(ends))
            clocks = clocks + alone * min(1.0, faster)
    return float(clocks.max())
