"""How a search opens: how many configs it tries before it has learned anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evoengine.search.scheduling import long_head
from evoengine.search.warmstart.forecast import COUNT

_TIMES_MORE: Final = 3
"""A long search on a GPU begins with so many times more configs that are expected to be fast."""


@dataclass(frozen=True)
class WarmStartPlan:
    """Numbers that follow from the request and the machine, never from the clock."""

    head: int
    """First proposals that depend on no outcome; 0 for as few as can be."""
    best: int
    """Configs that are expected to be fastest, which come before all other starts."""
    expected: int
    """These, and those that are expected to be next, which come after the other starts and fill the head."""

    @classmethod
    def of(cls, budget: int, named: int, compilers: int, *, predicted: bool, gets_ready: bool) -> WarmStartPlan:
        """The opening of a search.

        Args:
            budget: candidates of the search.
            named: starts that spaces and other people name.
            compilers: compile workers.
            predicted: whether its times are predictions.
            gets_ready: whether its device needs some seconds in which compilers could work.
        """
        head = long_head(budget, compilers) if gets_ready else 0
        more = 1 if predicted else _TIMES_MORE
        best = max(min(COUNT, budget // 4), min(more * COUNT, budget // 12))
        return cls(head, best, max(best, head - named))
