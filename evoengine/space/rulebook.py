"""The rules of a space for one problem and target, evaluated for many configs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from evoengine.errors import SearchSpaceError
from evoengine.model import Value
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.language.dependencies import support_of
from evoengine.space.language.expression import ExpressionError
from evoengine.space.language.expression_dag import ExpressionDag, circuit_of, opaque_circuit
from evoengine.space.language.rules import Constraint, Definition, Derived
from evoengine.space.language.vectorized import Array, ScalarNeededError, evaluate_array, truth
from evoengine.space.tunables import Tunable


@dataclass(frozen=True)
class RuleBook:
    """What rules say about rows of value indices."""

    definition: Definition
    tunables: tuple[Tunable, ...]
    """With the values that overrides left."""
    constants: Mapping[str, Value]
    """The names of the problem and the target."""

    def circuit(self, constraint: Constraint) -> ExpressionDag:
        """A constraint's circuit; opaque where NumPy cannot compute its parts one by one."""
        axes = {tunable.name: axis for axis, tunable in enumerate(self.tunables)}
        derived = {item.name: item.expr for item in self.definition.derived}
        try:
            return circuit_of(constraint.rule, axes, self.constants, derived)
        except ScalarNeededError:
            return self.opaque(constraint)

    def opaque(self, constraint: Constraint) -> ExpressionDag:
        """A constraint as one operation over all its tunables."""
        return opaque_circuit(self.axes(constraint), partial(self._truth_of_values, constraint))

    def axes(self, constraint: Constraint) -> tuple[int, ...]:
        """The tunables that a constraint depends on, directly or through derived names."""
        return self.axes_behind(constraint.rule)

    def axes_behind(self, text: str) -> tuple[int, ...]:
        """The tunables that an expression depends on, directly or through derived names."""
        names = support_of(text, self.definition.derived).names
        return tuple(axis for axis, tunable in enumerate(self.tunables) if tunable.name in names)

    def allows(self, constraint: Constraint, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Which rows obey a constraint.

        Raises:
            SearchSpaceError: an expression cannot be evaluated for one of them.
        """
        columns = [np.array(self.tunables[axis].values)[rows[:, axis]] for axis in self.axes(constraint)]
        return np.broadcast_to(self._truth_of_values(constraint, columns), (len(rows),))

    def table(self, name: str) -> Array:
        """Values of a tunable, a derived value or a constant, one dimension for each of :meth:`axes_behind`.

        Raises:
            SearchSpaceError: an expression cannot be evaluated for some values.
        """
        values = [np.array(self.tunables[axis].values) for axis in self.axes_behind(name)]
        columns = [np.expand_dims(one, [*range(at), *range(at + 1, len(values))]) for at, one in enumerate(values)]
        return np.broadcast_to(self._value(name, name, columns), [len(one) for one in values])

    def derive(self, item: Derived, scope: Mapping[str, Array]) -> Array:
        """A derived value, from all that it reads.

        Raises:
            SearchSpaceError: it cannot be computed.
        """
        return self._evaluate(f"derived.{item.name}.expr", item.expr, scope)

    def _truth_of_values(self, constraint: Constraint, columns: Sequence[Array]) -> npt.NDArray[np.bool_]:
        """Whether a constraint holds, for values of :meth:`axes`."""
        return truth(self._value(f"constraints.{constraint.name}.rule", constraint.rule, columns))

    def _value(self, key: str, text: str, columns: Sequence[Array]) -> Array:
        """An expression for values of :meth:`axes_behind`."""
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
