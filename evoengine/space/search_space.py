"""A search space: tunables, values derived from them, and constraints with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Config, Problem, Value
from evoengine.space.language.expression import ExpressionError, ExpressionProgram, evaluate, names_in
from evoengine.space.language.rules import (
    LIMIT_NAMES,
    PROBLEM_NAMES,
    SHAPE_NAMES,
    TEXT_NAMES,
    Constraint,
    Definition,
    Derived,
    problem_scope,
)
from evoengine.space.space_builder import build_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

__all__ = ["SHAPE_NAMES", "Constraint", "Derived", "SearchSpace", "problem_scope"]


@dataclass(frozen=True)
class SearchSpace(Definition):
    """All configs of one family, before a problem and a target narrow them down."""

    @cached_property
    def shape_dependent(self) -> frozenset[str]:
        """Derived names that, directly or not, use an axis in :data:`SHAPE_NAMES`: not fit for a source."""
        found: set[str] = set()
        for item in self.derived:
            if names_in(item.expr) & (found | set(SHAPE_NAMES)):
                found.add(item.name)
        return frozenset(found)

    def config(self, values: Mapping[str, Value]) -> Config:
        """The config with these values; it need not obey the constraints.

        Raises:
            UsageError: a tunable is missing, unknown, or cannot hold its value.
        """
        self._require_complete(values)
        return Config.of(self.family, values)

    def derive(self, values: Mapping[str, Value], problem: Problem, target: Target) -> dict[str, int | bool]:
        """The derived values of one config, in file order.

        Raises:
            UsageError: a tunable is missing, unknown, or cannot hold its value.
            SearchSpaceError: an expression cannot be evaluated, or gives text.
        """
        scope = self.scope(values, problem, target)
        return {item.name: _as_number(scope[item.name]) for item in self.derived}

    def scope(self, values: Mapping[str, Value], problem: Problem, target: Target) -> dict[str, Value]:
        """Everything that an expression of this space may name: tunables, derived, problem and target.

        Raises:
            UsageError: a tunable is missing, unknown, or cannot hold its value.
            SearchSpaceError: a derived expression cannot be evaluated, or gives text.
        """
        return self.scope_beside({**problem_scope(problem), **target.scope()}, values)

    def scope_beside(self, given: Mapping[str, Value], values: Mapping[str, Value]) -> dict[str, Value]:
        """The same, for those who ask about many configs on one problem and target.

        Args:
            given: the names of problem and target.
            values: by tunable.

        Raises:
            UsageError: as :meth:`scope`.
            SearchSpaceError: as :meth:`scope`.
        """
        self._require_complete(values)
        scope = {**given, **values}
        if self._program.run(scope):
            return scope
        scope = {**given, **values}
        for item in self.derived:
            scope[item.name] = self._evaluate(f"derived.{item.name}.expr", item.expr, scope)
            if isinstance(scope[item.name], str):
                raise SearchSpaceError(self.file, f"derived.{item.name}.expr", f"gives the text {scope[item.name]!r}")
        return scope

    def check(self, values: Mapping[str, Value], problem: Problem, target: Target) -> list[Constraint]:
        """The constraints that a config violates; empty when it is valid.

        Raises:
            UsageError: a tunable is missing, unknown, or cannot hold its value.
            SearchSpaceError: an expression cannot be evaluated.
        """
        scope = self.scope(values, problem, target)
        return [
            constraint
            for constraint in self.constraints
            if not self._evaluate(f"constraints.{constraint.name}.rule", constraint.rule, scope)
        ]

    def build(
        self,
        problem: Problem,
        target: Target,
        *,
        overrides: Mapping[str, Sequence[Value]] | None = None,
    ) -> ValidSpace:
        """All valid configs for one problem and target.

        Args:
            problem: what the constraints' problem names stand for.
            target: what their limit names stand for.
            overrides: for some tunables, the only values to consider, out of their own.

        Raises:
            UsageError: an override names no tunable or a value that the tunable cannot hold.
            SearchSpaceError: no config is valid (the message says which constraints exclude all), there are more
                valid configs than 64 bits can number, or an expression cannot be evaluated.
        """
        return build_space(self, problem, target, overrides or {})

    @cached_property
    def _program(self) -> ExpressionProgram:
        """All derived values; a derived value is never text, nor is a size of a problem or a limit of a target."""
        texts = {tunable.name for tunable in self.tunables if any(isinstance(value, str) for value in tunable.values)}
        numbers = (PROBLEM_NAMES | LIMIT_NAMES | self.by_name.keys()) - texts - TEXT_NAMES
        return ExpressionProgram([(item.name, item.expr) for item in self.derived], numbers)

    @cached_property
    def _choices(self) -> frozenset[tuple[str, Value]]:
        return frozenset((one.name, value) for one in self.tunables for value in one.values)

    @cached_property
    def _types(self) -> Mapping[str, type]:
        """Of the tunables whose values are of one type, which are all but odd ones."""
        types = {one.name: {type(value) for value in one.values} for one in self.tunables}
        return {name: found.pop() for name, found in types.items() if len(found) == 1}

    def _is_complete(self, values: Mapping[str, Value]) -> bool:
        """Whether all is surely in order, told at once; ``True`` equals 1, so the types count too."""
        types = self._types
        return (
            len(values) == len(types) == len(self.tunables)
            and values.items() <= self._choices
            and [*map(type, map(values.__getitem__, types))] == [*types.values()]
        )

    def _require_complete(self, values: Mapping[str, Value]) -> None:
        if self._is_complete(values):
            return
        unknown = sorted(values.keys() - self.by_name.keys())
        missing = [tunable.name for tunable in self.tunables if tunable.name not in values]
        if unknown:
            raise UsageError(f"family {self.family} has no tunable {unknown[0]}")
        if missing:
            raise UsageError(f"the config lacks a value for {missing[0]}")
        for tunable in self.tunables:
            tunable.encode(values[tunable.name])

    def _evaluate(self, key: str, text: str, scope: Mapping[str, Value]) -> Value:
        try:
            return evaluate(text, scope)
        except ExpressionError as error:
            raise SearchSpaceError(self.file, key, str(error)) from None


def _as_number(value: Value) -> int | bool:
    assert not isinstance(value, str), "scope() refuses text"
    return value
