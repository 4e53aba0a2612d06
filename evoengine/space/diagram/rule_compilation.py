"""Compilation of rules to decision diagrams, and their conjunction.

The tunables of a rule are fixed one after another. Operations whose operands are fixed are computed, and prefixes that
agree in all results still needed by the remaining operations become one state. Many prefixes decide a rule or are
equivalent, so the diagram of a rule is small. The conjunction traverses the diagrams of all rules in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.decision_diagram import NO_EDGE, Diagram, Edges
from evoengine.space.diagram.row_dedup import Codes, group
from evoengine.space.language.expression_dag import ExpressionDag
from evoengine.space.language.rules import Constraint
from evoengine.space.language.steps import spend
from evoengine.space.language.vectorized import Array, ScalarNeededError, truth
from evoengine.space.rulebook import RuleBook

MAX_STATES: Final = 2**16
"""Maximum number of states of a layer before reduction; the packaged spaces need a few thousand."""
_MAX_ENTRIES: Final = 2**20
"""Maximum number of states times values for which a rule is evaluated."""


@dataclass(frozen=True)
class _Cell:
    """Values of one node of a rule's graph, one per state."""

    codes: Codes
    values: Array
    """Value of each code."""

    def at(self, states: npt.NDArray[np.intp]) -> Array:
        return self.values[self.codes[states]]


def tunable_order(supports: Sequence[frozenset[int]], sizes: Sequence[int]) -> tuple[int, ...]:
    """Orders tunables such that rules are decided soon after their first tunable, which keeps diagrams small.

    The next tunable belongs to the started rule with the fewest remaining combinations; among its tunables, the one in
    most rules comes first.
    """
    uses = [sum(axis in support for support in supports) for axis in range(len(sizes))]
    order: list[int] = []
    left = set(range(len(sizes)))
    while left:
        rests = [support & left for support in supports if support & left]
        begun = [support & left for support in supports if support & left and support - left]
        if not rests:
            return (*order, *sorted(left))
        rest = min(begun or rests, key=lambda rest: (sum(np.log2(sizes[axis]) for axis in rest), sorted(rest)))
        axis = max(rest, key=lambda axis: (uses[axis], -axis))
        order.append(axis)
        left.remove(axis)
    return tuple(order)


def rule_diagram(book: RuleBook, constraint: Constraint, dag: ExpressionDag, order: Sequence[int]) -> Diagram | None:
    """Returns the diagram of the combinations of its own tunables that a rule allows; None if it would be too large.

    Raises:
        SearchSpaceError: An expression cannot be evaluated for a combination.
    """
    try:
        return _compile(book, dag, order)
    except ScalarNeededError:
        return _compile(book, book.opaque(constraint), order)


def _compile(book: RuleBook, dag: ExpressionDag, order: Sequence[int]) -> Diagram | None:
    axes = [axis for axis in order if axis in dag.axes]
    layers: list[Edges] = []
    cells: dict[int, _Cell] = {}
    done: set[int] = set()
    states = 1
    for axis in axes:
        size = len(book.tunables[axis].values)
        if states * size > _MAX_ENTRIES:
            return None
        spend(states * size * (len(cells) + 1))
        cells = {number: _Cell(np.repeat(cell.codes, size), cell.values) for number, cell in cells.items()}
        values = np.array(book.tunables[axis].values)
        cells[dag.tunable(axis)] = _Cell(np.tile(np.arange(size), states), values)
        done.add(axis)
        _compute(dag, cells, done, axis, states * size)
        cells, edges = _merge(dag, cells, done, states * size)
        layers.append(edges.reshape(states, size))
        states = int(edges.max()) + 1
        if states > MAX_STATES:
            return None
    return Diagram.reduced(axes, layers)


def _compute(dag: ExpressionDag, cells: dict[int, _Cell], done: set[int], axis: int, entries: int) -> None:
    """Adds the cells of all operations whose last free tunable is the newest one."""
    for number, node in enumerate(dag.nodes):
        if node.compute is None or axis not in node.axes or not node.axes <= done:
            continue
        sources = dag.variables(number)
        spend(entries * (len(sources) + 1))
        first, alike = group([(cells[source].codes, len(cells[source].values)) for source in sources], entries)
        result = dag.value(number, {source: cells[source].at(first) for source in sources})
        values, codes = np.unique(np.broadcast_to(result, first.shape), return_inverse=True)
        cells[number] = _Cell(codes[alike], values)


def _merge(
    dag: ExpressionDag, cells: dict[int, _Cell], done: set[int], entries: int
) -> tuple[dict[int, _Cell], npt.NDArray[np.int32]]:
    """Merges entries that agree in all cells still needed; returns the cells and the state of each entry."""
    if dag.root in cells:
        root = cells[dag.root]
        return {}, np.where(truth(root.values)[root.codes], 0, NO_EDGE).astype(np.int32)
    open_nodes = [node for node in dag.nodes if node.compute is not None and not node.axes <= done]
    needed = {source for node in open_nodes for source in node.inputs}
    live = {number: cell for number, cell in cells.items() if number in needed}
    first, alike = group([(cell.codes, len(cell.values)) for cell in live.values()], entries)
    return {number: _Cell(cell.codes[first], cell.values) for number, cell in live.items()}, alike.astype(np.int32)


@dataclass(frozen=True)
class Conjunction:
    """Conjunction of several diagrams."""

    diagram: Diagram
    left_out: frozenset[int]
    """Diagrams that are not included, because the result would be too large."""


def conjoin(diagrams: Sequence[Diagram], order: Sequence[int], sizes: Sequence[int]) -> Conjunction:
    """Computes the rows over all tunables that all diagrams allow.

    Args:
        diagrams: Diagrams over subsets of the tunables, in the same order.
        order: All tunables.
        sizes: Number of values of each tunable.
    """
    traversal = _Traversal(diagrams)
    layers = [traversal.step(axis, sizes[axis]) for axis in order]
    return Conjunction(Diagram.reduced(order, layers), frozenset(traversal.left_out))


class _Traversal:
    """Parallel traversal of several diagrams; a state is a tuple of their nodes."""

    def __init__(self, diagrams: Sequence[Diagram]) -> None:
        self._diagrams = dict(enumerate(diagrams))
        self._depth = dict.fromkeys(self._diagrams, 0)
        self._nodes: dict[int, Codes] = {}
        self._states = 1
        self.left_out: set[int] = set()

    def step(self, axis: int, size: int) -> Edges:
        """Fixes the next tunable; returns the edges from the previous states to the new ones."""
        spend(self._states * size * (len(self._diagrams) + 1))
        entries = np.arange(self._states * size)
        moved: dict[int, Codes] = {}
        for number, diagram in self._diagrams.items():
            if axis not in diagram.axes:
                continue
            edges = diagram.layers[self._depth[number]]
            before = self._nodes[number][entries // size] if number in self._nodes else 0
            after = edges[before, entries % size] if len(edges) else np.full(len(entries), NO_EDGE)
            alive = after >= 0
            entries = entries[alive]
            moved = {other: nodes[alive] for other, nodes in moved.items()}
            moved[number] = after[alive]
            self._depth[number] += 1
        waiting = {number: nodes[entries // size] for number, nodes in self._nodes.items() if number not in moved}
        return self._arrive({**moved, **waiting}, entries, size)

    def _arrive(self, nodes: dict[int, Codes], entries: npt.NDArray[np.intp], size: int) -> Edges:
        """Merges equal tuples of nodes into states; drops diagrams while there are too many states."""
        nodes = {number: at for number, at in nodes.items() if self._width(number) > 1}
        first, alike = group([(at, self._width(number)) for number, at in nodes.items()], len(entries))
        while len(first) > MAX_STATES:
            spend(len(entries) * len(nodes))
            widest = max(nodes, key=lambda number: len(np.unique(nodes[number])))
            del nodes[widest], self._diagrams[widest]
            self.left_out.add(widest)
            first, alike = group([(at, self._width(number)) for number, at in nodes.items()], len(entries))
        edges = np.full(self._states * size, NO_EDGE, np.int32)
        edges[entries] = alike
        before, self._states = self._states, len(first)
        self._nodes = {number: at[first] for number, at in nodes.items()}
        if not len(first):  # the set is empty; one unreachable state keeps the layers well-formed
            self._states, self._nodes = 1, {number: np.zeros(1, np.int32) for number in nodes}
        return edges.reshape(before, size)

    def _width(self, number: int) -> int:
        """Returns the number of nodes of a diagram's next layer; 1 after its last layer."""
        diagram, depth = self._diagrams[number], self._depth[number]
        return len(diagram.layers[depth]) if depth < len(diagram.axes) else 1
