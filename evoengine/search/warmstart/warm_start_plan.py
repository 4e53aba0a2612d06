"""The size of a search's warm start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evoengine.search.forecast.choice import COUNT
from evoengine.search.scheduling import long_head

_LONG_FACTOR: Final = 3
"""Factor on the number of forecast configs in a long search."""


@dataclass(frozen=True)
class WarmStartPlan:
    """Numbers of configs that a search tries first; they follow from the request and the machine alone."""

    head: int
    """Number of first proposals that depend on no outcome; 0 for the minimum."""
    best: int
    """Number of forecast configs for which starts are put off if the budget is small."""
    expected: int
    """Maximum number of forecast configs; with the named starts they fill the head."""

    @classmethod
    def of(cls, budget: int, named: int, compilers: int, *, gets_ready: bool) -> WarmStartPlan:
        """The warm start of a search.

        Args:
            budget: Candidates of the search.
            named: Number of starts from search spaces and imported results.
            compilers: Number of compile workers.
            gets_ready: Whether its device takes seconds to start, during which compilers can work.
        """
        head = long_head(budget, compilers) if gets_ready else 0
        best = max(min(COUNT, budget // 4), min(_LONG_FACTOR * COUNT, budget // 12))
        return cls(head, best, max(best, head - named))
