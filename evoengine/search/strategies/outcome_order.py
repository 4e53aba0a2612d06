"""Which outcomes a proposal may use: those of trials that are far enough back, or all that have arrived.

Where a device reports the same result for the same kernel, as the emulator and a recorded landscape do,
:class:`TrialOrder` makes proposals independent of the order in which candidates finish, so that a search can be
repeated. The price is that one slow compilation holds back all proposals after it, and that outcomes which are known
already are not used. Times of a GPU differ from search to search, so that its searches cannot be repeated in any case:
:class:`ArrivalOrder` uses all that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from evoengine.search.strategies.outcome import Outcome

_CATCH_UP: Final = 6, 5
"""After the head, the number of outcomes that a proposal may use grows by 6 for every 5 trials, until only those within
the lag are missing. A device works through the head faster than compilers refill it; waiting for all outcomes of the
head at once would leave it idle."""


@dataclass(frozen=True)
class Known:
    """The outcomes that a proposal may use."""

    count: int
    """Number of outcomes: the first ones in order."""
    hidden: Sequence[int]
    """Trials whose outcomes it must not use."""
    waits: bool
    """Whether an earlier outcome must be reported before the proposal is made."""


class OutcomeOrder(Protocol):
    """The outcomes of a study, in the order in which proposals may use them."""

    ordered: list[Outcome]
    """Outcomes that some proposal may use; those of an earlier one are first."""

    def add(self, number: int, outcome: Outcome | None) -> None:
        """Adds one trial's outcome, unless it is there; None for a trial that was withdrawn."""

    def known(self, number: int, lag: int, head: int) -> Known:
        """Returns how many outcomes a trial's proposal may use; lag and head are those of ``Strategy.ask``."""


class TrialOrder:
    """An :class:`OutcomeOrder` in which a proposal depends on the outcomes before a trial, in order of their numbers.

    Args:
        unnumbered: Outcomes that belong to no trial of their own; they precede all others.
    """

    def __init__(self, unnumbered: Sequence[Outcome]) -> None:
        self.ordered = list(unnumbered)
        self._by_number: dict[int, Outcome | None] = {}
        self._ends: list[int] = [len(unnumbered)]
        """Number of outcomes before each trial, as far as all of them are known."""

    def add(self, number: int, outcome: Outcome | None) -> None:
        self._by_number.setdefault(number, outcome)
        while len(self._ends) - 1 in self._by_number:
            found = self._by_number[len(self._ends) - 1]
            if found is not None:
                self.ordered.append(found)
            self._ends.append(len(self.ordered))

    def known(self, number: int, lag: int, head: int) -> Known:
        horizon = _horizon(number, lag, head)
        complete = len(self._ends) - 1
        count = self._ends[min(horizon, complete)]
        return Known(count, range(horizon, number), waits=horizon > complete)


class ArrivalOrder:
    """An :class:`OutcomeOrder` in which a proposal depends on all outcomes that are known when it is made.

    Args:
        unnumbered: Outcomes that belong to no trial of their own; they precede all others.
    """

    def __init__(self, unnumbered: Sequence[Outcome]) -> None:
        self.ordered = list(unnumbered)
        self._finished: set[int] = set()
        self._first_open = 0

    def add(self, number: int, outcome: Outcome | None) -> None:
        """Adds one trial's outcome, unless it is there; proposals may use it at once."""
        if number in self._finished or number < self._first_open:
            return
        if outcome is not None:
            self.ordered.append(outcome)
        self._finished.add(number)
        while self._first_open in self._finished:
            self._finished.remove(self._first_open)
            self._first_open += 1

    def known(self, number: int, lag: int, head: int) -> Known:
        hidden = [trial for trial in range(self._first_open, number) if trial not in self._finished]
        return Known(len(self.ordered), hidden, waits=False)


def _horizon(number: int, lag: int, head: int) -> int:
    """Trial before which a proposal may depend on outcomes; it never decreases from one trial to the next."""
    if number < head:
        return 0
    outcomes, trials = _CATCH_UP
    return max(0, min(number - lag, (number - head + 1) * outcomes // trials))
