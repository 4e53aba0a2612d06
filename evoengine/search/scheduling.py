"""How far a search asks ahead of what it knows: enough that no worker waits, and no further.

These numbers follow from the numbers of workers and the budget, never from the clock, since proposals depend on them
(see :mod:`evoengine.search.strategies.strategy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evoengine.search.settings import SearchSettings

_LAG_PER_PLACE: Final = 2.0
"""A proposal depends on no outcome of the last so many trials per candidate that may be under way. At 1, the slowest of
these would hold up all others; the larger it is, the less the strategy knows. On 15 compilers whose times scatter by a
third, 1.5 costs 4 % of the speed, 2 costs 1 %, and more gains nothing."""
_HEAD_PER_COMPILER: Final = 3.5
"""First proposals per compiler that depend on no outcome, so that compilers do not wait for the first ones."""
_LONG_HEAD_PER_COMPILER: Final = 7
"""As many as a compiler gets done while a GPU gets ready, which takes it some seconds longer."""
_HEAD_SHARE: Final = 5
"""A long head takes at most a budget over this: in a short search it would be most of it."""
_LONG: Final = 200
"""Budget from which who leads is looked at before the end; in a short search nobody knows early who will."""
_EARLIEST_LOOK: Final = 2, 3
"""Share of the budget before which that does not happen."""
_STAND_BY_PER_COMPILER: Final = 4
"""As many candidates as a compiler gets done while compute-sanitizer starts, which takes 2 s on a busy machine."""


@dataclass(frozen=True)
class Schedule:
    """How many proposals may be under way, and what they may not depend on."""

    limit: int
    """Candidates under way, beyond which no more are asked for, except at the beginning."""
    lag: int
    """See :meth:`evoengine.search.strategies.strategy.Strategy.ask`."""
    head: int
    """See :meth:`evoengine.search.strategies.strategy.Strategy.ask`."""
    early_look: int
    """Evaluations after which who leads is looked at while the search goes on; the budget if never.

    All that is left may be under way then: compilers do it while the device looks, and few are left who could lead.
    """
    stand_by: int
    """Evaluations after which the device gets ready to look."""

    @classmethod
    def of(cls, settings: SearchSettings, compilers: int, examiners: int) -> Schedule:
        """Of a search with so many workers.

        As many candidates as a head that the settings ask for may be under way later, too: with its lag, the strategy
        itself says when it has to wait, and what piled up meanwhile is worked off.
        """
        places = compilers + examiners + settings.lookahead
        head = max(int(_HEAD_PER_COMPILER * compilers), settings.head)
        lag = int(_LAG_PER_PLACE * places)
        early_look = _early_look(settings.budget, lag)
        stand_by = max(1, early_look - _STAND_BY_PER_COMPILER * compilers)
        return cls(max(places, settings.head), lag, head, early_look, stand_by)

    @property
    def at_once(self) -> int:
        """First proposals, which are made without waiting for anything."""
        return max(self.lag, self.head)


def long_head(budget: int, compilers: int) -> int:
    """The head of a search whose device gets ready long after its compilers.

    Args:
        budget: candidates of the search.
        compilers: compile workers.
    """
    return min(_LONG_HEAD_PER_COMPILER * compilers, budget // _HEAD_SHARE)


def _early_look(budget: int, lag: int) -> int:
    part, whole = _EARLIEST_LOOK
    return max(budget * part // whole, budget - lag) if budget >= _LONG else budget
