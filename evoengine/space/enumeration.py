"""From a search space to all its valid configs.

1. Each constraint becomes a truth table over the values of the tunables that it depends on, directly or through
   derived names. The tables give the exact number of configs that each constraint removes on its own.
2. Tunables that share a constraint, directly or along a chain, form a component. Components do not restrict each
   other, so each is solved alone by python-constraint's optimized backtracking solver.
3. The valid set is the product of the components' solutions, held as sorted mixed-radix keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Problem, Value
from evoengine.space.arrays import Array, evaluate_array
from evoengine.space.expression import ExpressionError, names_in
from evoengine.space.rules import Constraint, Definition, Derived, problem_scope
from evoengine.space.tunables import Tunable
from evoengine.space.valid import ValidSpace, radix_weights
from evoengine.target import Target

MAX_CONFIGS: Final = 10_000_000
"""Most valid configs that a built space holds."""
MAX_TABLE: Final = 2**28
"""Most combinations over which one constraint is tabulated."""
_CHUNK: Final = 2**20
"""Combinations that are evaluated at once: bounds memory, not results."""

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Table:
    """A constraint as a truth table: ``allowed[i, j, …]`` for the value indices of the tunables at ``axes``."""

    constraint: Constraint
    axes: tuple[int, ...]
    allowed: npt.NDArray[np.bool_]

    def removed(self, cartesian_size: int) -> int:
        """Configs of the Cartesian product that violate the constraint."""
        return (self.allowed.size - int(np.count_nonzero(self.allowed))) * (cartesian_size // self.allowed.size)


def enumerate_space(
    space: Definition, problem: Problem, target: Target, overrides: Mapping[str, Sequence[Value]]
) -> ValidSpace:
    """All valid configs; see :meth:`evoengine.space.space.SearchSpace.build`."""
    unknown = sorted(overrides.keys() - space.by_name.keys())
    if unknown:
        raise UsageError(f"family {space.family} has no tunable {unknown[0]}: it has {', '.join(space.by_name)}")
    tunables = tuple(
        tunable.restricted(overrides[tunable.name]) if tunable.name in overrides else tunable
        for tunable in space.tunables
    )
    sizes = tuple(len(tunable.values) for tunable in tunables)
    cartesian_size = math.prod(sizes)
    if cartesian_size >= 2**62:
        raise SearchSpaceError(space.file, "tunables", f"{cartesian_size:.1e} combinations are too many")
    tables = [_tabulate(space, constraint, tunables, problem, target) for constraint in space.constraints]
    keys = _solve_all(space, tables, sizes)
    return ValidSpace(
        family=space.family,
        tunables=tunables,
        constraints=space.constraints,
        keys=keys,
        cartesian_size=cartesian_size,
        removed={table.constraint.name: table.removed(cartesian_size) for table in tables},
    )


def _tabulate(
    space: Definition, constraint: Constraint, tunables: tuple[Tunable, ...], problem: Problem, target: Target
) -> _Table:
    names, derived = _support(space, constraint.rule)
    axes = tuple(place for place, tunable in enumerate(tunables) if tunable.name in names)
    involved = [tunables[place] for place in axes]
    shape = tuple(len(tunable.values) for tunable in involved)
    key = f"constraints.{constraint.name}.rule"
    if math.prod(shape) > MAX_TABLE:
        reason = f"depends on {len(axes)} tunables with {math.prod(shape):,} combinations: split the rule"
        raise SearchSpaceError(space.file, key, reason)
    constants = {name: np.asarray(value) for name, value in {**problem_scope(problem), **target.scope()}.items()}
    allowed = np.empty(shape, np.bool_)
    outer = 0
    while math.prod(shape[outer:]) > _CHUNK:
        outer += 1
    for place in np.ndindex(*shape[:outer]):
        scope = constants | _grid(involved, place)
        for item in derived:
            scope[item.name] = _evaluate(space, f"derived.{item.name}.expr", item.expr, scope)
        values = _evaluate(space, key, constraint.rule, scope)
        truth = values != "" if values.dtype.kind == "U" else values.astype(np.bool_)
        allowed[place] = truth.reshape(truth.shape[outer:]) if truth.ndim else truth
    return _Table(constraint, axes, allowed)


def _support(space: Definition, rule: str) -> tuple[set[str], list[Derived]]:
    """All names that a rule depends on, and the derived ones among them in file order."""
    names = set(names_in(rule))
    needed: list[Derived] = []
    for item in reversed(space.derived):
        if item.name in names:
            names |= names_in(item.expr)
            needed.append(item)
    return names, needed[::-1]


def _grid(involved: Sequence[Tunable], place: tuple[int, ...]) -> dict[str, Array]:
    """Each tunable's values along its own axis; the leading ones fixed at ``place``."""
    grid: dict[str, Array] = {}
    for axis, tunable in enumerate(involved):
        values = [tunable.values[place[axis]]] if axis < len(place) else list(tunable.values)
        grid[tunable.name] = np.array(values).reshape([-1 if other == axis else 1 for other in range(len(involved))])
    return grid


def _evaluate(space: Definition, key: str, text: str, scope: Mapping[str, Array]) -> Array:
    try:
        return evaluate_array(text, scope)
    except ExpressionError as error:
        raise SearchSpaceError(space.file, key, str(error)) from None


def _solve_all(space: Definition, tables: list[_Table], sizes: tuple[int, ...]) -> Keys:
    """Sorted keys of all valid configs."""
    weights = radix_weights(sizes)
    keys: Keys = np.zeros(1, np.int64)
    for component in _components(tables, len(sizes)):
        own = [table for table in tables if table.axes and table.axes[0] in component]
        part = _solve(component, own, sizes, weights)
        if len(keys) * len(part) > MAX_CONFIGS:
            raise SearchSpaceError(space.file, "constraints", f"leave more than {MAX_CONFIGS:,} valid configs")
        keys = np.add.outer(keys, part).ravel()
    if len(keys) == 0 or any(not table.axes and not table.allowed for table in tables):
        raise SearchSpaceError(space.file, "constraints", _why_empty(tables, sizes))
    keys.sort()
    return keys


def _components(tables: list[_Table], count: int) -> list[tuple[int, ...]]:
    """Groups of tunables that constraints connect."""
    group = list(range(count))
    for table in tables:
        joined = {group[axis] for axis in table.axes}
        group = [min(joined) if own in joined else own for own in group]
    return [tuple(axis for axis in range(count) if group[axis] == leader) for leader in sorted(set(group))]


def _solve(component: tuple[int, ...], tables: list[_Table], sizes: tuple[int, ...], weights: tuple[int, ...]) -> Keys:
    """Keys of a component's solutions, the digits of all other tunables 0."""
    if not tables:
        keys: Keys = np.zeros(1, np.int64)
        for axis in component:
            keys = np.add.outer(keys, np.arange(sizes[axis], dtype=np.int64) * weights[axis]).ravel()
        return keys
    solutions = _solutions(component, tables, sizes)
    return np.fromiter(
        (sum(index * weights[axis] for axis, index in solution.items()) for solution in solutions), np.int64
    )


def _solutions(component: tuple[int, ...], tables: list[_Table], sizes: tuple[int, ...]) -> Iterator[dict[int, int]]:
    """Solutions as value indices by axis, one at a time: a list of dicts would take more memory than all else."""
    from constraint import OptimizedBacktrackingSolver
    from constraint import Problem as ConstraintProblem

    csp = ConstraintProblem(OptimizedBacktrackingSolver(forwardcheck=False))
    for axis in component:
        csp.addVariable(axis, list(range(sizes[axis])))
    for table in tables:
        csp.addConstraint(_Lookup(table), list(table.axes))
    yield from csp.getSolutionIter()


class _Lookup:
    """A truth table as the function that the solver calls with one index per axis."""

    def __init__(self, table: _Table) -> None:
        self._bytes = table.allowed.astype(np.uint8).tobytes()
        self._weights = radix_weights(table.allowed.shape)

    def __call__(self, *indices: int) -> int:
        return self._bytes[sum(map(int.__mul__, indices, self._weights))]


def _why_empty(tables: list[_Table], sizes: tuple[int, ...]) -> str:
    """Names a smallest set of constraints that together exclude everything (none of it can be dropped)."""
    culprits = list(tables)
    for table in tables:
        rest = [other for other in culprits if other is not table]
        if not _satisfiable(rest, sizes):
            culprits = rest
    names = " and ".join(table.constraint.name for table in culprits)
    reasons = "; ".join(table.constraint.reason for table in culprits)
    together = "excludes every config" if len(culprits) == 1 else "together exclude every config"
    return f"{names} {together} for this problem and target ({reasons})"


def _satisfiable(tables: list[_Table], sizes: tuple[int, ...]) -> bool:
    if any(not table.allowed.any() for table in tables):
        return False
    for component in _components(tables, len(sizes)):
        own = [table for table in tables if table.axes and table.axes[0] in component]
        if own and next(_solutions(component, own, sizes), None) is None:
            return False
    return True
