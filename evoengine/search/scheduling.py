"""How many candidates a search keeps in flight, and on which outcomes a proposal depends.

The numbers follow from the numbers of workers and the budget, never from the clock, since proposals depend on them (see
:mod:`evoengine.search.strategies.strategy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evoengine.search.settings import SearchSettings

_LAG_PER_CANDIDATE: Final = 2.0
"""Lag per candidate that may be in flight. At 1, the slowest candidate delays all others; a larger lag hides more
outcomes from the strategy. With 15 compilers whose times vary by a third, 1.5 costs 4 % of the throughput, 2 costs 1 %,
and larger values gain nothing."""
_HEAD_PER_COMPILER: Final = 3.5
"""Length of the head per compiler, so that compilers do not wait for the first outcomes."""
_LONG_HEAD_PER_COMPILER: Final = 7
"""Compilations per compiler while a GPU starts, which takes some seconds longer than starting a compiler."""
_HEAD_SHARE: Final = 5
"""A long head is at most the budget divided by this, so that it does not fill a short search."""
_EARLIEST_INSPECTION: Final = 2, 3
"""Share of the budget before which the leader is not inspected, as numerator and denominator."""
_TRIALS_PER_PLACE: Final = 2
"""Number of trials after the head per reduction of the candidates in flight by one, until the limit is reached."""
_SANITIZER_START_PER_COMPILER: Final = 4
"""Compilations per compiler while compute-sanitizer starts."""


@dataclass(frozen=True)
class Schedule:
    """How many proposals may be in flight, and how they depend on outcomes."""

    limit: int
    """Maximum number of candidates in flight, except at the start; see :meth:`in_flight`."""
    compiling: int
    """Candidates that compilers work on or that wait for one, from which on no more are proposed after the head.

    A proposal that would wait gains nothing: made later, it can use more outcomes.
    """
    lag: int
    """See :meth:`evoengine.search.strategies.strategy.Strategy.ask`."""
    head: int
    """See :meth:`evoengine.search.strategies.strategy.Strategy.ask`."""
    elect_after: int
    """Evaluations after which the first leader is elected, and the leader inspected, while the search continues.

    It equals the budget if this never happens.

    At most ``lag`` candidates remain then: compilers work on them during the inspection, and few of them could take the
    lead.
    """
    inspect_ahead_after: int
    """Evaluations after which the fastest candidate is inspected ahead, beside the device."""
    start_sanitizer_after: int
    """Evaluations after which compute-sanitizer starts, beside the device."""
    in_order: bool
    """Whether the strategy limits the proposals, too, since it waits for outcomes in the order of their trials."""

    @classmethod
    def of(cls, settings: SearchSettings, compilers: int, examiners: int) -> Schedule:
        """The schedule of a search.

        Args:
            settings: Settings of the search.
            compilers: Number of compile workers.
            examiners: Number of device workers.
        """
        compiling = compilers + settings.compile_queue
        limit = compiling + examiners * (1 if settings.in_order else settings.submitted)
        head = max(int(_HEAD_PER_COMPILER * compilers), settings.head)
        lag = int(_LAG_PER_CANDIDATE * limit)
        elect_after = _election(settings, lag)
        start_sanitizer_after = max(1, elect_after - _SANITIZER_START_PER_COMPILER * compilers)
        if settings.in_order:  # then the lag limits the proposals after a longer head
            limit = max(limit, settings.head)
        inspect_ahead_after = min(elect_after, _earliest_inspection(settings.budget))
        return cls(
            limit=limit,
            compiling=compiling,
            lag=lag,
            head=head,
            elect_after=elect_after,
            inspect_ahead_after=inspect_ahead_after,
            start_sanitizer_after=start_sanitizer_after,
            in_order=settings.in_order,
        )

    def in_flight(self, number: int) -> int:
        """Maximum number of candidates in flight for the proposal of trial ``number`` to be made.

        The first proposals are made at once. A device works through them faster than compilers refill the head, so that
        as many as in the head remain in flight at first, and fewer and fewer later.
        """
        if number < (max(self.lag, self.head) if self.in_order else self.head):
            return number + 1
        if self.in_order:
            return self.limit
        return max(self.limit, self.head - (number - self.head) // _TRIALS_PER_PLACE)


def long_head(budget: int, compilers: int) -> int:
    """Length of the head for a device that starts much later than the compilers.

    Args:
        budget: Candidates of the search.
        compilers: Number of compile workers.
    """
    return min(_LONG_HEAD_PER_COMPILER * compilers, budget // _HEAD_SHARE)


def _election(settings: SearchSettings, lag: int) -> int:
    if settings.budget < settings.elect_early_from:
        return settings.budget
    return max(_earliest_inspection(settings.budget), settings.budget - lag)


def _earliest_inspection(budget: int) -> int:
    part, whole = _EARLIEST_INSPECTION
    return budget * part // whole
