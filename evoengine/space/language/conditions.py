"""Conditional tunables: ``when`` in a search-space file.

A tunable has no effect while its condition is false, so all its values would yield the same kernel. An implied
constraint then pins it to its first value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evoengine.model import Value
from evoengine.space.language.expression import ExpressionError, evaluate
from evoengine.space.language.rules import Constraint, Definition, Derived, support_of
from evoengine.space.tunables import Tunable


def pinning_constraint(tunable: Tunable) -> Constraint:
    """Returns the constraint implied by a tunable's condition."""
    first = tunable.values[0]
    holds_first = f"not {tunable.name}" if first is False else f"{tunable.name} == {first!r}"
    condition = " ".join(tunable.when.split())
    return Constraint(
        name=f"{tunable.name.lower()}_when",
        rule=f"({condition}) or {holds_first}",
        reason=f"{tunable.name} matters only when {condition}: elsewhere it stays at {first!r}",
    )


def cyclic_condition(tunables: Sequence[Tunable], derived: Sequence[Derived]) -> str:
    """Returns the name of a tunable whose condition depends on itself, also indirectly; empty if there is none."""
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
    """Conditions of a space for one problem and target."""

    definition: Definition
    constants: Mapping[str, Value]
    """Values of the problem's and the target's names."""

    def normalised(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Returns the values with every ineffective tunable set to its first value.

        A condition that cannot be evaluated, because values are missing or unknown, leaves its tunable unchanged.
        """
        normalised = dict(values)
        scope: dict[str, Value] = {**self.constants, **normalised}
        for tunable, derived in self._ordered:
            if tunable.name not in normalised:
                continue
            try:
                for item in derived:
                    scope[item.name] = evaluate(item.expr, scope)
                effective = evaluate(tunable.when, scope)
            except ExpressionError:
                continue
            if not effective:
                normalised[tunable.name] = scope[tunable.name] = tunable.values[0]
        return normalised

    @cached_property
    def _ordered(self) -> tuple[tuple[Tunable, tuple[Derived, ...]], ...]:
        """Conditional tunables in order of dependency, each with the derived values read by its condition."""
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
