"""Rule as a directed acyclic graph of operations, evaluated node by node while tunables are fixed one after another.

Derived names are inlined, common subexpressions are shared, and constant parts are folded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from evoengine.model import Value
from evoengine.space.language.expression import operands, parse
from evoengine.space.language.vectorized import Array, combine


@dataclass(frozen=True)
class Node:
    """A tunable, a constant or an operation."""

    axes: frozenset[int]
    """Indices of the tunables on which the value depends."""
    inputs: tuple[int, ...] = ()
    """Operand nodes of an operation."""
    compute: Callable[[Sequence[Array]], Array] | None = None
    """Operation on one array per input; None for a tunable or a constant."""
    constant: Array | None = None


@dataclass
class ExpressionDag:
    """Nodes in topological order; the value of ``root`` is true if the rule holds."""

    nodes: list[Node] = field(default_factory=list)
    root: int = 0
    _known: dict[object, int] = field(default_factory=dict)

    @property
    def axes(self) -> frozenset[int]:
        """Indices of the tunables on which the rule depends."""
        return self.nodes[self.root].axes

    def add(self, identity: object, node: Node) -> int:
        """Returns the number of the node with this identity, after adding it if it is new."""
        if identity not in self._known:
            self._known[identity] = len(self.nodes)
            self.nodes.append(node)
        return self._known[identity]

    def tunable(self, axis: int) -> int:
        return self.add(("tunable", axis), Node(frozenset((axis,))))

    def variables(self, number: int) -> tuple[int, ...]:
        """Returns the inputs of a node that are not constant, without repetition."""
        inputs = dict.fromkeys(self.nodes[number].inputs)
        return tuple(source for source in inputs if self.nodes[source].constant is None)

    def value(self, number: int, known: Mapping[int, Array]) -> Array:
        """Computes an operation from the values of its variables.

        Raises:
            ScalarNeededError: NumPy cannot compute the value exactly.
        """
        node = self.nodes[number]
        assert node.compute is not None, "only operations compute"
        constants = (self.nodes[source].constant for source in node.inputs)
        pairs = zip(node.inputs, constants, strict=True)
        return node.compute([known[source] if constant is None else constant for source, constant in pairs])


def dag_of(
    rule: str, axes: Mapping[str, int], constants: Mapping[str, Value], derived: Mapping[str, str]
) -> ExpressionDag:
    """Builds the graph of a rule.

    Args:
        rule: Expression over tunables, derived names and constants.
        axes: Index of each tunable, by name.
        constants: Values of the problem's and the target's names.
        derived: Expressions by derived name.

    Raises:
        ScalarNeededError: NumPy cannot compute a constant part exactly.
    """
    builder = _DagBuilder(axes, constants, derived)
    builder.dag.root = builder.convert(parse(rule).tree.body)
    return builder.dag


def opaque_dag(axes: Sequence[int], compute: Callable[[Sequence[Array]], Array]) -> ExpressionDag:
    """Builds a graph with a single operation, which needs the values of all tunables of the rule."""
    dag = ExpressionDag()
    inputs = tuple(dag.tunable(axis) for axis in axes)
    dag.root = dag.add("rule", Node(frozenset(axes), inputs, compute))
    return dag


@dataclass
class _DagBuilder:
    """Converts syntax trees to nodes."""

    axes: Mapping[str, int]
    constants: Mapping[str, Value]
    derived: Mapping[str, str]
    dag: ExpressionDag = field(default_factory=ExpressionDag)
    _named: dict[str, int] = field(default_factory=dict)

    def convert(self, node: ast.expr) -> int:
        """Adds the nodes of a syntax tree; returns the number of the last one."""
        match node:
            case ast.Constant(value=value):
                return self._constant(np.asarray(value))
            case ast.Name(id=name):
                return self._name(name)
        inputs = tuple(self.convert(operand) for operand in operands(node))
        nodes = [self.dag.nodes[source] for source in inputs]
        axes = frozenset[int]().union(*(node.axes for node in nodes))
        if not axes:
            constants = [node.constant for node in nodes if node.constant is not None]
            return self._constant(np.asarray(combine(node, constants)))
        return self.dag.add((tuple(_shape(node)), inputs), Node(axes, inputs, partial(combine, node)))

    def _name(self, name: str) -> int:
        if name in self.axes:
            return self.dag.tunable(self.axes[name])
        if name not in self.derived:
            return self._constant(np.asarray(self.constants[name]))
        if name not in self._named:
            self._named[name] = self.convert(parse(self.derived[name]).tree.body)
        return self._named[name]

    def _constant(self, value: Array) -> int:
        return self.dag.add(("constant", value.dtype.kind, value.item()), Node(frozenset(), constant=value))


def _shape(node: ast.expr) -> Iterator[str]:
    """Yields the attributes that distinguish operations with equal inputs."""
    yield type(node).__name__
    match node:
        case ast.BinOp() | ast.UnaryOp() | ast.BoolOp():
            yield type(node.op).__name__
        case ast.Call(func=ast.Name(id=function)):
            yield function
        case ast.Compare(ops=ops, comparators=comparators):
            for op, comparator in zip(ops, comparators, strict=True):
                yield f"{type(op).__name__}{len(comparator.elts) if isinstance(comparator, ast.Tuple) else ''}"
