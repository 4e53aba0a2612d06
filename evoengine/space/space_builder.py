"""Builds the valid space of a search space for one problem and target.

Each rule becomes a decision diagram, which yields the exact number of combinations that the rule removes on its own.
The conjunction of all diagrams represents all valid configs; it takes milliseconds for 1e10 configs, because no config
is enumerated. A rule whose diagram would be too large is checked config by config (a *loose* rule). A size that then
cannot be counted is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Problem, Value
from evoengine.space.diagram.config_count import Count
from evoengine.space.diagram.decision_diagram import MOST_CONFIGS, Diagram
from evoengine.space.diagram.rule_compilation import conjoin, rule_diagram, tunable_order
from evoengine.space.index_rows import IndexRows
from evoengine.space.language.conditions import Conditions
from evoengine.space.language.rules import Constraint, Definition, check_size, problem_scope
from evoengine.space.language.steps import MAX_STEPS, StepLimitError, step_budget
from evoengine.space.rulebook import RuleBook
from evoengine.space.tunables import Tunable
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

MAX_ENUMERATED: Final = 2**20
"""Maximum number of combinations that are enumerated to count a space with loose rules exactly."""
_SAMPLE: Final = 2**14
"""Combinations drawn at once for an estimate."""
_MOST_SAMPLES: Final = 8
_GOOD_ENOUGH: Final = 0.02
"""Relative error at which an estimate is accepted."""


def build_space(
    space: Definition, problem: Problem, target: Target, overrides: Mapping[str, Sequence[Value]]
) -> ValidSpace:
    """Implements :meth:`evoengine.space.search_space.SearchSpace.build`.

    Raises:
        UsageError: An override names an unknown tunable or value.
        SearchSpaceError: The space has no valid config, is too large or too complex, or an expression cannot be
            evaluated.
    """
    check_size(space)
    constants = {**problem_scope(problem), **target.scope()}
    try:
        with step_budget(MAX_STEPS):
            return _Builder(RuleBook(space, _restricted(space, overrides), constants)).build()
    except (StepLimitError, RecursionError, MemoryError):
        reason = f"need more than {MAX_STEPS:,} steps: use fewer values, or split rules that read many tunables"
        raise SearchSpaceError(space.file, "constraints", reason) from None


def _restricted(space: Definition, overrides: Mapping[str, Sequence[Value]]) -> tuple[Tunable, ...]:
    unknown = sorted(overrides.keys() - space.by_name.keys())
    if unknown:
        raise UsageError(f"family {space.family} has no tunable {unknown[0]}: it has {', '.join(space.by_name)}")
    return tuple(
        tunable.restricted(overrides[tunable.name]) if tunable.name in overrides else tunable
        for tunable in space.tunables
    )


@dataclass(frozen=True)
class _Builder:
    """Builder of the valid space of one rule book."""

    book: RuleBook

    def build(self) -> ValidSpace:
        """Builds the valid space; it is exact if no rule is loose or few enough configs remain to enumerate."""
        diagram, loose = self._conjoin(self._constraints)
        if diagram.empty:
            raise self._error(self._why_empty())
        if diagram.count >= MOST_CONFIGS:
            raise self._error(f"leave {diagram.count:.1e} configs, more than 64 bits can number")
        space = ValidSpace(
            tunables=self.book.tunables,
            count=Count(diagram.count),
            cartesian_size=math.prod(self._sizes),
            removed={constraint.name: self._removed(constraint) for constraint in self._constraints},
            diagram=diagram,
            loose=loose,
            book=self.book,
            conditions=Conditions(self.book.definition, self.book.constants),
        )
        if not loose:
            return space
        return self._enumerated(space) if diagram.count <= MAX_ENUMERATED else self._estimated(space)

    @property
    def _constraints(self) -> tuple[Constraint, ...]:
        return self.book.definition.constraints

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(len(tunable.values) for tunable in self.book.tunables)

    @cached_property
    def _order(self) -> tuple[int, ...]:
        return tunable_order([frozenset(self.book.axes(constraint)) for constraint in self._constraints], self._sizes)

    @cached_property
    def _diagrams(self) -> Mapping[str, Diagram | None]:
        """Diagram of each rule; None if it would be too large."""
        return {
            constraint.name: rule_diagram(self.book, constraint, self.book.dag(constraint), self._order)
            for constraint in self._constraints
        }

    def _conjoin(self, constraints: Sequence[Constraint]) -> tuple[Diagram, tuple[Constraint, ...]]:
        """Returns the joint diagram of constraints, and the constraints that it does not include."""
        held = {constraint: self._diagrams[constraint.name] for constraint in constraints}
        fitting = {constraint: diagram for constraint, diagram in held.items() if diagram is not None}
        joined = conjoin(list(fitting.values()), self._order, self._sizes)
        left_out = {constraint for number, constraint in enumerate(fitting) if number in joined.left_out}
        loose = tuple(constraint for constraint in constraints if held[constraint] is None or constraint in left_out)
        return joined.diagram, loose

    def _removed(self, constraint: Constraint) -> Count:
        """Returns how many combinations a constraint excludes on its own."""
        cartesian_size = math.prod(self._sizes)
        diagram = self._diagrams[constraint.name]
        if diagram is None:
            allowed = self.book.allows(constraint, self._combinations())
            return Count.estimated(cartesian_size, int(np.count_nonzero(~allowed)), len(allowed))
        own_size = math.prod(self._sizes[axis] for axis in diagram.axes)
        return Count((own_size - diagram.count) * (cartesian_size // own_size))

    def _combinations(self) -> IndexRows:
        """Uniform random combinations with a fixed seed."""
        return np.random.default_rng(0).integers(self._sizes, size=(_SAMPLE, len(self._sizes))).astype(np.uint8)

    def _enumerated(self, space: ValidSpace) -> ValidSpace:
        """Returns an exact space: the diagram of the rows that satisfy the loose rules too."""
        rows = space.diagram.rows(np.arange(space.diagram.count))
        valid = rows[space.obeys(rows)]
        if len(valid) == 0:
            raise self._error(f"exclude every config for this problem and target, {space.loose[0].name} the last ones")
        return replace(space, diagram=Diagram.of_rows(self._order, valid), count=Count(len(valid)), loose=())

    def _estimated(self, space: ValidSpace) -> ValidSpace:
        """Returns the space with a size estimated from random draws."""
        rng = np.random.default_rng(0)
        hits = drawn = 0
        while drawn < _MOST_SAMPLES * _SAMPLE:
            rows = space.diagram.rows(rng.integers(space.diagram.count, size=_SAMPLE))
            hits += int(np.count_nonzero(space.obeys(rows)))
            drawn += _SAMPLE
            count = Count.estimated(space.diagram.count, hits, drawn)
            if hits and count.relative_error <= _GOOD_ENOUGH:
                break
        if not hits:
            names = " and ".join(constraint.name for constraint in space.loose)
            raise self._error(f"{names} excluded all {drawn:,} sampled combinations: split the rule")
        return replace(space, count=count)

    def _why_empty(self) -> str:
        """Describes an irreducible set of constraints that together exclude every config."""
        culprits = list(self._constraints)
        for constraint in self._constraints:
            rest = [other for other in culprits if other is not constraint]
            if self._conjoin(rest)[0].empty:
                culprits = rest
        names = " and ".join(constraint.name for constraint in culprits)
        reasons = "; ".join(constraint.reason for constraint in culprits)
        together = "excludes every config" if len(culprits) == 1 else "together exclude every config"
        return f"{names} {together} for this problem and target ({reasons})"

    def _error(self, reason: str) -> SearchSpaceError:
        return SearchSpaceError(self.book.definition.file, "constraints", reason)
