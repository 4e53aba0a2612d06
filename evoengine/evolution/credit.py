"""Choice of the operator of each proposal: controls in fixed turns, the others by their success."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.evolution.archive import TUNED
from evoengine.leaderboard.variants import Attempt

CONTROL_TURN: Final = 4
"""One proposal of so many is a control's."""
RANDOM: Final = "random"
CONTROLS: Final = (RANDOM, "parent")
BASE: Final = "base"
"""Operator of the attempt that searches the unchanged family."""
_CORRECT: Final = 0.2
"""Reward of a correct variant that is not faster than its parent; a faster one has 1."""


@dataclass(frozen=True)
class OperatorStats:
    """Results of one operator."""

    operator: str
    proposals: int
    correct: int
    """Proposals whose variant was searched."""
    faster: int
    """Variants faster than their parent."""
    best_gain: float
    """Largest relative speed-up over the unchanged family; negative if all are slower, 0 without any."""
    candidates: int
    seconds: float


def statistics(attempts: Sequence[Attempt]) -> tuple[OperatorStats, ...]:
    """Returns the results by operator, in the order in which the operators first proposed."""
    base_us = next((one.best_us for one in attempts if one.operator == BASE), None)
    operators = dict.fromkeys(one.operator for one in attempts if one.operator != BASE)
    return tuple(_stats(name, [one for one in attempts if one.operator == name], base_us) for name in operators)


def _stats(operator: str, attempts: Sequence[Attempt], base_us: float | None) -> OperatorStats:
    tuned = [one for one in attempts if one.stage == TUNED and one.best_us is not None]
    gains = [base_us / one.best_us - 1 for one in tuned if base_us is not None and one.best_us is not None]
    return OperatorStats(
        operator=operator,
        proposals=len(attempts),
        correct=len(tuned),
        faster=sum(is_faster(one) for one in tuned),
        best_gain=max(gains, default=0.0),
        candidates=sum(one.candidates for one in attempts),
        seconds=sum(one.seconds for one in attempts),
    )


def is_faster(attempt: Attempt) -> bool:
    """Returns whether an attempt's variant is faster than its parent was."""
    return attempt.best_us is not None and attempt.parent_us is not None and attempt.best_us < attempt.parent_us


def _is_new_variant(attempt: Attempt) -> bool:
    return attempt.stage == TUNED and attempt.variant != attempt.parent


def next_operators(operators: Iterable[str], attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Returns the operators in the order in which they are asked for the next proposal.

    Every fourth proposal is a control's, where one is given. The others follow the upper confidence bound of their mean
    reward (UCB1, Auer et al. 2002). Without others, they are random edits.

    Args:
        operators: Names of the operators.
        attempts: Earlier attempts.
    """
    names = tuple(operators)
    done = [one for one in attempts if one.operator != BASE]
    controls = tuple(name for name in names if name in CONTROLS)
    others = tuple(name for name in names if name not in CONTROLS) or tuple(name for name in names if name == RANDOM)
    turn = len(done) // CONTROL_TURN
    rotated = tuple(controls[(turn + step) % len(controls)] for step in range(len(controls)))
    ranked = tuple(sorted(others, key=lambda name: (-_bound(name, done), names.index(name))))
    return (*rotated, *ranked) if len(done) % CONTROL_TURN == CONTROL_TURN - 1 else ranked


def _bound(name: str, attempts: Sequence[Attempt]) -> float:
    own = [one for one in attempts if one.operator == name]
    if not own:
        return math.inf
    rewards = sum(1.0 if is_faster(one) else _CORRECT * _is_new_variant(one) for one in own)
    return rewards / len(own) + math.sqrt(2 * math.log(len(attempts)) / len(own))
