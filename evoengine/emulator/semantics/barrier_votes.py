"""``bar.red``: what the threads of a CTA that meet at a barrier say together.

The parser writes such an instruction as three: a note of each thread's predicate, the barrier, and a look at the
result. Threads that a barrier releases look before any of them notes again, because they go on together.
"""

from __future__ import annotations

import numpy as np

from evoengine.emulator.execution.cta_split import Rows, count
from evoengine.emulator.semantics.floats import Array


class BarrierVotes:
    """Predicates noted before the barriers of one batch of CTAs."""

    def __init__(self, ctas: int, threads: int) -> None:
        self._shape = (ctas, threads)
        self._true: dict[int, Array] = {}
        self._all: dict[int, Array] = {}

    def note(self, number: int, predicate: Array, mask: Array | None) -> None:
        """The active lanes bring a predicate to a barrier."""
        if number not in self._true:
            self._true[number] = np.zeros((self._shape[0], 1), np.uint32)
            self._all[number] = np.zeros((self._shape[0], 1), np.uint32)
        active = np.broadcast_to(np.ones((1, 1), np.bool_) if mask is None else mask, self._shape)
        on = np.broadcast_to(predicate, self._shape) & active
        self._true[number] = self._true[number] + on.sum(axis=1, keepdims=True, dtype=np.uint32)
        self._all[number] = self._all[number] + active.sum(axis=1, keepdims=True, dtype=np.uint32)

    def look(self, number: int, operation: str, mask: Array | None) -> Array:
        """The result for the CTAs whose lanes are active, who thereby start anew: ``[ctas, 1]``."""
        true, everyone = self._true[number], self._all[number]
        active = np.broadcast_to(np.ones((1, 1), np.bool_) if mask is None else mask, self._shape)
        here = active.any(axis=1, keepdims=True)
        self._true[number] = np.where(here, np.uint32(0), true)
        self._all[number] = np.where(here, np.uint32(0), everyone)
        if operation == "popc":
            return true
        return np.asarray(true == everyone if operation == "and" else true > 0)

    def keep(self, rows: Rows) -> None:
        """Goes on with some of the CTAs only."""
        self._shape = (count(rows), self._shape[1])
        self._true = {number: values[rows] for number, values in self._true.items()}
        self._all = {number: values[rows] for number, values in self._all.items()}
