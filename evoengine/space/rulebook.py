"""Rules of a space for one problem and target, evaluated for many configs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from evoengine.errors import SearchSpaceError
from evoengine.model import Value
from evoengine.space.index_rows import IndexRows
from evoengine.space.language.expression import ExpressionError
from evoengine.space.language.expression_dag import ExpressionDag, dag_of, opaque_dag
from evoengine.space.language.rules import Constraint, Definition, Derived, support_of
from evoengine.space.language.vectorized import Array, ScalarNeededError, evaluate_array, truth
from evoengine.space.tunables import Tunable


@dataclass(frozen=True)
class RuleBook:
    """Constraints and derived values, bound to a problem and a target, for rows of value indices."""

    definition: Definition
    tunables: tuple[Tunable, ...]
    """Tunables after overrides."""
    constants: Mapping[str, Value]
    """Values of the problem's and the target's names."""

    def dag(self, constraint: Constraint) -> ExpressionDag:
        """Returns a constraint as a graph of operations; a single one if NumPy cannot compute its parts exactly."""
        axes = {tunable.name: axis for axis, tunable in enumerate(self.tunables)}
        derived = {item.name: item.expr for item in self.definition.derived}
        try:
            return dag_of(constraint.rule, axes, self.constants, derived)
        except ScalarNeededError:
            return self.opaque(constraint)

    def opaque(self, constraint: Constraint) -> ExpressionDag:
        """Returns a constraint as a single operation on all its tunables."""
        return opaque_dag(self.axes(constraint), partial(self._truth_of_values, constraint))

    def axes(self, constraint: Constraint) -> tuple[int, ...]:
        """Returns the indices of the tunables on which a constraint depends."""
        return self.axes_behind(constraint.rule)

    def axes_behind(self, text: str) -> tuple[int, ...]:
        """Returns the indices of the tunables on which an expression depends, also through derived names."""
        names = support_of(text, self.definition.derived).names
        return tuple(axis for axis, tunable in enumerate(self.tunables) if tunable.name in names)

    def allows(self, constraint: Constraint, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Returns which rows satisfy a constraint.

        Raises:
            SearchSpaceError: An expression cannot be evaluated for a row.
        """
        columns = [np.array(self.tunables[axis].values)[rows[:, axis]] for axis in self.axes(constraint)]
        return np.broadcast_to(self._truth_of_values(constraint, columns), (len(rows),))

    def table(self, name: str) -> Array:
        """Returns all values of a tunable, a derived value or a constant, with one dimension per :meth:`axes_behind`.

        Raises:
            SearchSpaceError: An expression cannot be evaluated for some values.
        """
        values = [np.array(self.tunables[axis].values) for axis in self.axes_behind(name)]
        columns = [np.expand_dims(one, [*range(at), *range(at + 1, len(values))]) for at, one in enumerate(values)]
        return np.broadcast_to(self._value(name, name, columns), [len(one) for one in values])

    def derive(self, item: Derived, scope: Mapping[str, Array]) -> Array:
        """Computes a derived value from the values of all names that it reads.

        Raises:
            SearchSpaceError: The expression cannot be evaluated.
        """
        return self._evaluate(f"derived.{item.name}.expr", item.expr, scope)

    def _truth_of_values(self, constraint: Constraint, columns: Sequence[Array]) -> npt.NDArray[np.bool_]:
        """Returns whether a constraint holds, given one array per :meth:`axes`."""
        return truth(self._value(f"constraints.{constraint.name}.rule", constraint.rule, columns))

    def _value(self, key: str, text: str, columns: Sequence[Array]) -> Array:
        """Evaluates an expression, given one array per :meth:`axes_behind`."""
        scope = {name: np.asarray(value) for name, value in self.constants.items()}
        names = (self.tunables[axis].name for axis in self.axes_behind(text))
        scope.update(zip(names, columns, strict=True))
        for item in support_of(text, self.definition.derived).derived:
            scope[item.name] = self.derive(item, scope)
        return self._evaluate(key, text, scope)

    def _evaluate(self, key: str, text: str, scope: Mapping[str, Array]) -> Array:
        try:
            return evaluate_array(text, scope)
        except ExpressionError as error:
            raise SearchSpaceError(self.definition.file, key, str(error)) from None
