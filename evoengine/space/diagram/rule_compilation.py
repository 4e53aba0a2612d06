"""From rules to diagrams: each rule to a diagram of its own, and all of them to one.

While the tunables of a rule are fixed one by one, parts of its circuit become known. What the rest needs of them is all
that matters from then on: prefixes that agree in it become one state. Many prefixes decide a rule, or leave it just as
open as others do, so the diagram of one rule is small. The diagram of all rules walks through theirs side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.decision_diagram import DEAD, Arrows, Diagram
from evoengine.space.diagram.row_dedup import Codes, group
from evoengine.space.language.expression_dag import ExpressionDag
from evoengine.space.language.rules import Constraint
from evoengine.space.language.vectorized import Array, ScalarNeededError, truth
from evoengine.space.rulebook import RuleBook

MAX_STATES: Final = 2**16
"""Most states of one layer before reduction. The rules of today's spaces need a few thousand at most."""
_MAX_ENTRIES: Final = 2**20
"""Most states times values that one rule is evaluated for."""


@dataclass(frozen=True)
class _Cell:
    """Values of one gate, one per state."""

    codes: Codes
    values: Array
    """What the codes stand for."""

    def at(self, states: npt.NDArray[np.intp]) -> Array:
        return self.values[self.codes[states]]


def tunable_order(supports: Sequence[frozenset[int]], sizes: Sequence[int]) -> tuple[int, ...]:
    """An order in which rules are decided soon after they are begun, which keeps diagrams small.

    Next comes a tunable of the begun rule that has the fewest combinations left, of these the one in most rules.
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


def rule_diagram(
    book: RuleBook, constraint: Constraint, circuit: ExpressionDag, order: Sequence[int]
) -> Diagram | None:
    """The combinations of its own tunables that a rule allows; None if the diagram would be too large.

    Raises:
        SearchSpaceError: an expression cannot be evaluated for some combination.
    """
    try:
        return _compile(book, circuit, order)
    except ScalarNeededError:
        return _compile(book, book.opaque(constraint), order)


def _compile(book: RuleBook, circuit: ExpressionDag, order: Sequence[int]) -> Diagram | None:
    axes = [axis for axis in order if axis in circuit.axes]
    layers: list[Arrows] = []
    cells: dict[int, _Cell] = {}
    done: set[int] = set()
    states = 1
    for axis in axes:
        size = len(book.tunables[axis].values)
        if states * size > _MAX_ENTRIES:
            return None
        cells = {number: _Cell(np.repeat(cell.codes, size), cell.values) for number, cell in cells.items()}
        values = np.array(book.tunables[axis].values)
        cells[circuit.tunable(axis)] = _Cell(np.tile(np.arange(size), states), values)
        done.add(axis)
        _compute(circuit, cells, done, axis, states * size)
        cells, arrows = _merge(circuit, cells, done, states * size)
        layers.append(arrows.reshape(states, size))
        states = int(arrows.max()) + 1
        if states > MAX_STATES:
            return None
    return Diagram.reduced(axes, layers)


def _compute(circuit: ExpressionDag, cells: dict[int, _Cell], done: set[int], axis: int, entries: int) -> None:
    """Adds the cells of all operations that the newest tunable makes known."""
    for number, gate in enumerate(circuit.gates):
        if gate.compute is None or axis not in gate.axes or not gate.axes <= done:
            continue
        sources = circuit.variables(number)
        first, alike = group([(cells[source].codes, len(cells[source].values)) for source in sources], entries)
        result = circuit.value(number, {source: cells[source].at(first) for source in sources})
        values, codes = np.unique(np.broadcast_to(result, first.shape), return_inverse=True)
        cells[number] = _Cell(codes[alike], values)


def _merge(
    circuit: ExpressionDag, cells: dict[int, _Cell], done: set[int], entries: int
) -> tuple[dict[int, _Cell], npt.NDArray[np.int32]]:
    """The states of the next layer: entries that agree in every cell that is still needed."""
    if circuit.root in cells:
        root = cells[circuit.root]
        return {}, np.where(truth(root.values)[root.codes], 0, DEAD).astype(np.int32)
    open_gates = [gate for gate in circuit.gates if gate.compute is not None and not gate.axes <= done]
    needed = {source for gate in open_gates for source in gate.inputs}
    live = {number: cell for number, cell in cells.items() if number in needed}
    first, alike = group([(cell.codes, len(cell.values)) for cell in live.values()], entries)
    return {number: _Cell(cell.codes[first], cell.values) for number, cell in live.items()}, alike.astype(np.int32)


@dataclass(frozen=True)
class Conjunction:
    """What several diagrams allow together."""

    diagram: Diagram
    left_out: frozenset[int]
    """Diagrams that could not be joined, because the result would be too large."""


def conjoin(diagrams: Sequence[Diagram], order: Sequence[int], sizes: Sequence[int]) -> Conjunction:
    """The rows that all diagrams allow, over all tunables.

    Args:
        diagrams: each over some of the tunables, in the same order.
        order: all tunables.
        sizes: values of each tunable.
    """
    walk = _Walk(diagrams)
    layers = [walk.step(axis, sizes[axis]) for axis in order]
    return Conjunction(Diagram.reduced(order, layers), frozenset(walk.left_out))


class _Walk:
    """Goes through several diagrams side by side; a state is a node of each."""

    def __init__(self, diagrams: Sequence[Diagram]) -> None:
        self._diagrams = dict(enumerate(diagrams))
        self._depth = dict.fromkeys(self._diagrams, 0)
        self._nodes: dict[int, Codes] = {}
        self._states = 1
        self.left_out: set[int] = set()

    def step(self, axis: int, size: int) -> Arrows:
        """Fixes one more tunable; returns the arrows from the states before to those after."""
        entries = np.arange(self._states * size)
        moved: dict[int, Codes] = {}
        for number, diagram in self._diagrams.items():
            if axis not in diagram.axes:
                continue
            arrows = diagram.layers[self._depth[number]]
            before = self._nodes[number][entries // size] if number in self._nodes else 0
            after = arrows[before, entries % size] if len(arrows) else np.full(len(entries), DEAD)
            alive = after >= 0
            entries = entries[alive]
            moved = {other: nodes[alive] for other, nodes in moved.items()}
            moved[number] = after[alive]
            self._depth[number] += 1
        waiting = {number: nodes[entries // size] for number, nodes in self._nodes.items() if number not in moved}
        return self._arrive({**moved, **waiting}, entries, size)

    def _arrive(self, nodes: dict[int, Codes], entries: npt.NDArray[np.intp], size: int) -> Arrows:
        """Makes states of all distinct tuples of nodes; where they are too many, lets diagrams go."""
        nodes = {number: at for number, at in nodes.items() if self._width(number) > 1}
        first, alike = group([(at, self._width(number)) for number, at in nodes.items()], len(entries))
        while len(first) > MAX_STATES:
            widest = max(nodes, key=lambda number: len(np.unique(nodes[number])))
            del nodes[widest], self._diagrams[widest]
            self.left_out.add(widest)
            first, alike = group([(at, self._width(number)) for number, at in nodes.items()], len(entries))
        arrows = np.full(self._states * size, DEAD, np.int32)
        arrows[entries] = alike
        before, self._states = self._states, len(first)
        self._nodes = {number: at[first] for number, at in nodes.items()}
        if not len(first):  # nothing is left; one state that no arrow leads to keeps the walk going
            self._states, self._nodes = 1, {number: np.zeros(1, np.int32) for number in nodes}
        return arrows.reshape(before, size)

    def _width(self, number: int) -> int:
        """Nodes of a diagram's next layer; 1 when the diagram is behind us."""
        diagram, depth = self._diagrams[number], self._depth[number]
        return len(diagram.layers[depth]) if depth < len(diagram.axes) else 1
