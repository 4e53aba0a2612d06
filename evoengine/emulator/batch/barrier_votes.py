"""Predicates of the threads that arrive at ``bar.red`` barriers."""

from __future__ import annotations

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count


class BarrierVotes:
    """Predicates of the threads that arrive at ``bar.red`` barriers, for one batch of CTAs.

    The parser replaces a ``bar.red`` by three instructions: one that records each thread's predicate, the barrier, and
    one that reads the result. The result is fixed when the barrier opens, so that threads at different instructions
    read the same one.
    """

    def __init__(self, ctas: int, threads: int) -> None:
        self._shape = (ctas, threads)
        self._votes: dict[int, Array] = {}
        """Number of true predicates per CTA, by barrier number."""
        self._voters: dict[int, Array] = {}
        self._results: dict[int, tuple[Array, Array]] = {}
        """Votes and voters of the last barrier that opened."""

    def record(self, number: int, predicate: Array, mask: Array | None) -> None:
        """Records the predicates of the active lanes for barrier ``number``."""
        if number not in self._votes:
            zeros = np.zeros((self._shape[0], 1), np.uint32)
            self._votes[number], self._voters[number], self._results[number] = zeros, zeros, (zeros, zeros)
        active = np.broadcast_to(np.ones((1, 1), np.bool_) if mask is None else mask, self._shape)
        on = np.broadcast_to(predicate, self._shape) & active
        self._votes[number] = self._votes[number] + on.sum(axis=1, keepdims=True, dtype=np.uint32)
        self._voters[number] = self._voters[number] + active.sum(axis=1, keepdims=True, dtype=np.uint32)

    def close(self, number: int, opened: Array | None) -> None:
        """Fixes the result where a barrier opens, bool ``[ctas]`` or None for all CTAs, and begins the next vote."""
        if number not in self._votes:
            return
        now = np.ones((1, 1), np.bool_) if opened is None else opened[:, None]
        votes, voters = self._votes[number], self._voters[number]
        old_votes, old_voters = self._results[number]
        self._results[number] = np.where(now, votes, old_votes), np.where(now, voters, old_voters)
        self._votes[number], self._voters[number] = (np.where(now, np.uint32(0), x) for x in (votes, voters))

    def result(self, number: int, operation: str) -> Array:
        """Result of ``popc``, ``and`` or ``or``, ``[ctas, 1]``."""
        votes, voters = self._results[number]
        if operation == "popc":
            return votes
        return np.asarray(votes == voters if operation == "and" else votes > 0)

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the votes to some of the CTAs."""
        self._shape = (row_count(rows), self._shape[1])
        self._votes = {number: values[rows] for number, values in self._votes.items()}
        self._voters = {number: values[rows] for number, values in self._voters.items()}
        self._results = {number: (votes[rows], voters[rows]) for number, (votes, voters) in self._results.items()}
