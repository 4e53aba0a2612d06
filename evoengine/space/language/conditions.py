"""Tunables that matter only under a condition: ``when`` in a search-space file.

Where the condition is false the tunable has no effect, so all its values would be one kernel under several names. A
constraint of its own then keeps it at its first value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evoengine.model import Value
from evoengine.space.language.dependencies import support_of
from evoengine.space.language.expression import ExpressionError, evaluate
from evoengine.space.language.rules import Constraint, Definition, Derived
from evoengine.space.tunables import Tunable


def pinning_constraint(tunable: Tunable) -> Constraint:
    """The constraint that a tunable's ``when`` stands for."""
    first = tunable.values[0]
    holds_first = f"not {tunable.name}" if first is False else f"{tunable.name} == {first!r}"
    condition = " ".join(tunable.when.split())
    return Constraint(
        name=f"{tunable.name.lower()}_when",
        rule=f"({condition}) or {holds_first}",
        reason=f"{tunable.name} matters only when {condition}: elsewhere it stays at {first!r}",
    )


def circle(tunables: Sequence[Tunable], derived: Sequence[Derived]) -> str:
    """A tunable whose condition depends on itself, directly or through other conditions; empty if there is none."""
    reads = {tunable.name: support_of(tunable.when, derived).names for tunable in tunables if tunable.when}
    for name in reads:
        reached: set[str] = set()
        waiting = [name]
        while waiting:
            new = reads.get(waiting.pop(), frozenset()) - reached
            reached |= new
            waiting.extend(new)
        if name in reached:
            return name
    return ""


@dataclass(frozen=True)
class Conditions:
    """The conditions of a space, for one problem and target."""

    definition: Definition
    constants: Mapping[str, Value]
    """What the names of the problem and the target stand for."""

    def settled(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The values with every tunable that does not matter at its first value.

        A condition that cannot be told, because values are missing or foreign, is left alone.
        """
        settled = dict(values)
        scope: dict[str, Value] = {**self.constants, **settled}
        for tunable, derived in self._ordered:
            if tunable.name not in settled:
                continue
            try:
                for item in derived:
                    scope[item.name] = evaluate(item.expr, scope)
                matters = evaluate(tunable.when, scope)
            except ExpressionError:
                continue
            if not matters:
                settled[tunable.name] = scope[tunable.name] = tunable.values[0]
        return settled

    @cached_property
    def _ordered(self) -> tuple[tuple[Tunable, tuple[Derived, ...]], ...]:
        """Conditional tunables, each after those that its condition reads, with the derived values that it needs."""
        supports = {
            tunable: support_of(tunable.when, self.definition.derived)
            for tunable in self.definition.tunables
            if tunable.when
        }
        ordered: list[tuple[Tunable, tuple[Derived, ...]]] = []
        while supports:
            waiting = {tunable.name for tunable in supports}
            ready = next(tunable for tunable, support in supports.items() if not support.names & waiting)
            ordered.append((ready, supports.pop(ready).derived))
        return tuple(ordered)
