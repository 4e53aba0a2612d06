"""A rule as a circuit: operations on tunables, so that what is known of it can be computed while tunables are fixed.

Derived names are inlined, equal parts are shared, and what depends on no tunable is computed at once.
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
class Gate:
    """A tunable, a constant or an operation."""

    axes: frozenset[int]
    """Tunables that its value depends on."""
    inputs: tuple[int, ...] = ()
    """Gates that an operation computes with."""
    compute: Callable[[Sequence[Array]], Array] | None = None
    """The operation, over one array per input."""
    constant: Array | None = None


@dataclass
class ExpressionDag:
    """Gates, each after its inputs; ``root`` tells whether the rule holds."""

    gates: list[Gate] = field(default_factory=list)
    root: int = 0
    _known: dict[object, int] = field(default_factory=dict)

    @property
    def axes(self) -> frozenset[int]:
        """Tunables that the rule depends on."""
        return self.gates[self.root].axes

    def add(self, identity: object, gate: Gate) -> int:
        """Number of a gate, made if there is none of this identity."""
        if identity not in self._known:
            self._known[identity] = len(self.gates)
            self.gates.append(gate)
        return self._known[identity]

    def tunable(self, axis: int) -> int:
        """Number of a tunable's gate."""
        return self.add(("tunable", axis), Gate(frozenset((axis,))))

    def variables(self, number: int) -> tuple[int, ...]:
        """The inputs of a gate that are not constant, each once."""
        inputs = dict.fromkeys(self.gates[number].inputs)
        return tuple(source for source in inputs if self.gates[source].constant is None)

    def value(self, number: int, known: Mapping[int, Array]) -> Array:
        """What an operation computes from the values of its variables.

        Raises:
            ScalarNeededError: NumPy cannot tell.
        """
        gate = self.gates[number]
        assert gate.compute is not None, "only operations compute"
        constants = (self.gates[source].constant for source in gate.inputs)
        pairs = zip(gate.inputs, constants, strict=True)
        return gate.compute([known[source] if constant is None else constant for source, constant in pairs])


def circuit_of(
    rule: str, axes: Mapping[str, int], constants: Mapping[str, Value], derived: Mapping[str, str]
) -> ExpressionDag:
    """The circuit of a rule.

    Args:
        rule: an expression over tunables, derived names and constants.
        axes: tunables by name.
        constants: what the names of the problem and the target stand for.
        derived: expressions by derived name.

    Raises:
        ScalarNeededError: a constant part has no value that NumPy can tell.
    """
    wiring = _Wiring(axes, constants, derived)
    wiring.circuit.root = wiring.wire(parse(rule).tree.body)
    return wiring.circuit


def opaque_circuit(axes: Sequence[int], compute: Callable[[Sequence[Array]], Array]) -> ExpressionDag:
    """The circuit of a rule of which nothing is known before all its tunables are fixed."""
    circuit = ExpressionDag()
    inputs = tuple(circuit.tunable(axis) for axis in axes)
    circuit.root = circuit.add("rule", Gate(frozenset(axes), inputs, compute))
    return circuit


@dataclass
class _Wiring:
    """Turns syntax trees into gates."""

    axes: Mapping[str, int]
    constants: Mapping[str, Value]
    derived: Mapping[str, str]
    circuit: ExpressionDag = field(default_factory=ExpressionDag)
    _named: dict[str, int] = field(default_factory=dict)

    def wire(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=value):
                return self._constant(np.asarray(value))
            case ast.Name(id=name):
                return self._name(name)
        inputs = tuple(self.wire(operand) for operand in operands(node))
        gates = [self.circuit.gates[source] for source in inputs]
        axes = frozenset[int]().union(*(gate.axes for gate in gates))
        if not axes:
            constants = [gate.constant for gate in gates if gate.constant is not None]
            return self._constant(np.asarray(combine(node, constants)))
        return self.circuit.add((tuple(_shape(node)), inputs), Gate(axes, inputs, partial(combine, node)))

    def _name(self, name: str) -> int:
        if name in self.axes:
            return self.circuit.tunable(self.axes[name])
        if name not in self.derived:
            return self._constant(np.asarray(self.constants[name]))
        if name not in self._named:
            self._named[name] = self.wire(parse(self.derived[name]).tree.body)
        return self._named[name]

    def _constant(self, value: Array) -> int:
        return self.circuit.add(("constant", value.dtype.kind, value.item()), Gate(frozenset(), constant=value))


def _shape(node: ast.expr) -> Iterator[str]:
    """What tells apart two operations with the same inputs."""
    yield type(node).__name__
    match node:
        case ast.BinOp() | ast.UnaryOp() | ast.BoolOp():
            yield type(node.op).__name__
        case ast.Call(func=ast.Name(id=function)):
            yield function
        case ast.Compare(ops=ops, comparators=comparators):
            for op, comparator in zip(ops, comparators, strict=True):
                yield f"{type(op).__name__}{len(comparator.elts) if isinstance(comparator, ast.Tuple) else ''}"
