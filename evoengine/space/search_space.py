"""Search space of a family: tunables, derived values, and constraints with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from evoengine.documents.suggestions import did_you_mean
from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Config, Problem, Value
from evoengine.space.language.expression import ExpressionBatch, ExpressionError, evaluate, names_in
from evoengine.space.language.rules import (
    LIMIT_NAMES,
    PROBLEM_NAMES,
    SHAPE_NAMES,
    TEXT_NAMES,
    Constraint,
    Definition,
    problem_scope,
)
from evoengine.space.space_builder import build_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target


@dataclass(frozen=True)
class SearchSpace(Definition):
    """Search space of one family, not yet bound to a problem and a target."""

    def __getstate__(self) -> dict[str, object]:
        """Returns the fields only: cached properties hold compiled code, which cannot be pickled."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def shape_dependent(self) -> frozenset[str]:
        """Derived names that depend on a size in :data:`SHAPE_NAMES`, so that a source cannot define them."""
        found: set[str] = set()
        for item in self.derived:
            if names_in(item.expr) & (found | set(SHAPE_NAMES)):
                found.add(item.name)
        return frozenset(found)

    @cached_property
    def shape_definitions(self) -> tuple[tuple[str, str], ...]:
        """Names and expressions of the :attr:`shape_dependent` derived values, which a template's launches may use."""
        return tuple((item.name, item.expr) for item in self.derived if item.name in self.shape_dependent)

    def config(self, values: Mapping[str, Value]) -> Config:
        """Builds a config from complete values; it may violate constraints.

        Raises:
            UsageError: A tunable is missing, unknown, or does not have the value.
        """
        self._require_complete(values)
        return Config.of(self.family, values)

    def updated(self, config: Config) -> Config:
        """Builds a config that was recorded with an older version of the space.

        Tunables that it lacks take their first value; those that the space does not have any more are left out.

        Raises:
            UsageError: A tunable does not have the value any more.
        """
        first = {tunable.name: tunable.values[0] for tunable in self.tunables}
        return self.config(first | {name: value for name, value in config.as_dict().items() if name in first})

    def derive(self, values: Mapping[str, Value], problem: Problem, target: Target) -> dict[str, int | bool]:
        """Computes the derived values of a config, in file order.

        Raises:
            UsageError: A tunable is missing, unknown, or does not have the value.
            SearchSpaceError: An expression cannot be evaluated, or yields a string.
        """
        scope = self.scope(values, problem, target)
        return {item.name: _as_number(scope[item.name]) for item in self.derived}

    def scope(self, values: Mapping[str, Value], problem: Problem, target: Target) -> dict[str, Value]:
        """Returns the values of all names available to expressions: tunables, derived values, problem and target.

        Raises:
            UsageError: A tunable is missing, unknown, or does not have the value.
            SearchSpaceError: A derived expression cannot be evaluated, or yields a string.
        """
        return self.scope_beside({**problem_scope(problem), **target.scope()}, values)

    def scope_beside(self, given: Mapping[str, Value], values: Mapping[str, Value]) -> dict[str, Value]:
        """Returns the same values as :meth:`scope`, for many configs on one problem and target.

        Args:
            given: Values of the problem's and the target's names.
            values: Values of the tunables.

        Raises:
            UsageError: As for :meth:`scope`.
            SearchSpaceError: As for :meth:`scope`.
        """
        self._require_complete(values)
        scope = {**given, **values}
        if self._program.run(scope):
            return scope
        scope = {**given, **values}
        for item in self.derived:
            scope[item.name] = self._evaluate(f"derived.{item.name}.expr", item.expr, scope)
            if isinstance(scope[item.name], str):
                raise SearchSpaceError(
                    self.file, f"derived.{item.name}.expr", f"yields the string {scope[item.name]!r}"
                )
        return scope

    def check(self, values: Mapping[str, Value], problem: Problem, target: Target) -> list[Constraint]:
        """Returns the constraints that a config violates; empty if it is valid.

        Raises:
            UsageError: A tunable is missing, unknown, or does not have the value.
            SearchSpaceError: An expression cannot be evaluated.
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
        """Builds the space of valid configs for one problem and target.

        Args:
            problem: Problem.
            target: Target.
            overrides: Subsets of the values of some tunables; other values are excluded.

        Raises:
            UsageError: An override names an unknown tunable or value.
            SearchSpaceError: No config is valid (the message names the constraints that exclude all), there are more
                valid configs than 64 bits can number, or an expression cannot be evaluated.
        """
        return build_space(self, problem, target, overrides or {})

    @cached_property
    def _program(self) -> ExpressionBatch:
        """All derived expressions; derived values, sizes of a problem and limits of a target are never strings."""
        texts = {tunable.name for tunable in self.tunables if any(isinstance(value, str) for value in tunable.values)}
        numbers = (PROBLEM_NAMES | LIMIT_NAMES | self.by_name.keys()) - texts - TEXT_NAMES
        return ExpressionBatch([(item.name, item.expr) for item in self.derived], numbers)

    @cached_property
    def _choices(self) -> frozenset[tuple[str, Value]]:
        return frozenset((one.name, value) for one in self.tunables for value in one.values)

    @cached_property
    def _types(self) -> Mapping[str, type]:
        """Type of the values, for tunables whose values have one type."""
        types = {one.name: {type(value) for value in one.values} for one in self.tunables}
        return {name: found.pop() for name, found in types.items() if len(found) == 1}

    def _is_complete(self, values: Mapping[str, Value]) -> bool:
        """Fast check of complete, known values; False may be wrong. Types are compared because True equals 1."""
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
        where = f" ({self.file})" if self.file else ""
        if unknown:
            raise UsageError(
                f"family {self.family} has no tunable {unknown[0]}{where}{did_you_mean(unknown[0], self.by_name)}"
            )
        if missing:
            raise UsageError(f"family {self.family}: the config lacks a value for tunable {', '.join(missing)}{where}")
        for tunable in self.tunables:
            tunable.encode(values[tunable.name])

    def _evaluate(self, key: str, text: str, scope: Mapping[str, Value]) -> Value:
        try:
            return evaluate(text, scope)
        except ExpressionError as error:
            raise SearchSpaceError(self.file, key, str(error)) from None


def _as_number(value: Value) -> int | bool:
    assert not isinstance(value, str), "scope() rejects strings"
    return value
