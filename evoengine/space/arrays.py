"""Evaluates expressions for many configs at once: names stand for NumPy arrays that broadcast against each other.

A rule is evaluated over the grid of only those tunables that it depends on, since a name's array has length 1 along
every other axis. Where NumPy would differ from Python (a zero divisor behind an ``and``, 64-bit overflow, text mixed
with numbers) the scalar evaluator decides, element by element, so that both always agree.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Value
from evoengine.space.expression import evaluate, parse

Array = npt.NDArray[Any]

_LIMIT: Final = float(2**62)


class _ScalarNeededError(Exception):
    """NumPy's result could differ from Python's."""


def evaluate_array(text: str, scope: Mapping[str, Array]) -> Array:
    """Values of an expression over arrays.

    Args:
        text: the expression.
        scope: integer, boolean or text arrays of mutually broadcastable shapes; 0-d arrays are constants.

    Returns:
        Array of the broadcast shape of the names that the text uses.

    Raises:
        ExpressionError: as :func:`evoengine.space.expression.evaluate` for any element.
    """
    expression = parse(text)
    if not expression.names <= scope.keys():
        evaluate(text, {})  # raises, naming what is unknown
    try:
        return _visit(expression.tree.body, scope)
    except _ScalarNeededError:
        return _element_wise(text, {name: scope[name] for name in sorted(expression.names)})


def _element_wise(text: str, scope: Mapping[str, Array]) -> Array:
    if not scope:
        return np.asarray(evaluate(text, {}))
    arrays = np.broadcast_arrays(*scope.values())
    flat = [array.ravel().tolist() for array in arrays]
    values: list[Value] = [evaluate(text, dict(zip(scope, row, strict=True))) for row in zip(*flat, strict=True)]
    return np.array(values).reshape(arrays[0].shape)


def _visit(node: ast.expr, scope: Mapping[str, Array]) -> Array:
    match node:
        case ast.Constant(value=value):
            return np.asarray(value)
        case ast.Name(id=name):
            return scope[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(type(op), _visit(left, scope), _visit(right, scope))
        case ast.UnaryOp(op=op, operand=operand):
            inner = _visit(operand, scope)
            if isinstance(op, ast.Not):
                return ~_truth(inner)
            return -_number(inner) if isinstance(op, ast.USub) else _number(inner)
        case ast.Call(func=ast.Name(id=function), args=args):
            values = [_number(_visit(arg, scope)) for arg in args]
            return _call(function, values)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _choose(_truth(_visit(test, scope)), _visit(body, scope), _visit(orelse, scope))
        case ast.BoolOp(op=op, values=operands):
            return _connect(isinstance(op, ast.And), [_visit(operand, scope) for operand in operands])
        case ast.Compare():
            return _comparison(node, scope)
    raise _ScalarNeededError


def _number(array: Array) -> Array:
    if array.dtype.kind not in "bi":
        raise _ScalarNeededError
    return array.astype(np.int64, copy=False)


def _truth(array: Array) -> npt.NDArray[np.bool_]:
    return array != "" if array.dtype.kind == "U" else array.astype(np.bool_)


def _largest(array: Array) -> float:
    return float(max(abs(float(array.max())), abs(float(array.min()))))


def _divisor(array: Array) -> Array:
    if not array.all():
        raise _ScalarNeededError
    return array


def _arithmetic(op: type[ast.operator], left: Array, right: Array) -> Array:
    a, b = _number(left), _number(right)
    if op is ast.FloorDiv:
        return a // _divisor(b)
    if op is ast.Mod:
        return a % _divisor(b)
    sizes = (_largest(a), _largest(b))
    if (sizes[0] * sizes[1] if op is ast.Mult else sum(sizes)) >= _LIMIT:
        raise _ScalarNeededError
    return a * b if op is ast.Mult else a + b if op is ast.Add else a - b


def _call(function: str, values: list[Array]) -> Array:
    if function in ("ceil_div", "round_up"):
        a, b = values[0], _divisor(values[1])
        quotient = -(-a // b)
        return quotient if function == "ceil_div" else _arithmetic(ast.Mult, quotient, b)
    pick: Callable[[Array, Array], Array] = np.minimum if function == "min" else np.maximum
    result = values[0]
    for value in values[1:]:
        result = pick(result, value)
    return result


def _choose(test: npt.NDArray[np.bool_], body: Array, orelse: Array) -> Array:
    if (body.dtype.kind == "U") != (orelse.dtype.kind == "U"):
        raise _ScalarNeededError
    return np.where(test, body, orelse)


def _connect(conjunction: bool, values: list[Array]) -> Array:
    """``and`` and ``or`` give, as in Python, one of their operands."""
    result = values[0]
    for value in values[1:]:
        truth = _truth(result)
        result = _choose(truth, value, result) if conjunction else _choose(truth, result, value)
    return result


def _comparison(node: ast.Compare, scope: Mapping[str, Array]) -> Array:
    left = _visit(node.left, scope)
    result: Array | None = None
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        if isinstance(comparator, ast.Tuple):
            members = [_equal(left, _visit(element, scope)) for element in comparator.elts]
            found: Array = np.zeros((), np.bool_)
            for member in members:
                found = found | member
            part = ~found if isinstance(op, ast.NotIn) else found
        else:
            right = _visit(comparator, scope)
            part = _compare(op, left, right)
            left = right
        result = part if result is None else result & part
    if result is None:
        raise _ScalarNeededError
    return result


def _equal(left: Array, right: Array) -> Array:
    if (left.dtype.kind == "U") != (right.dtype.kind == "U"):
        return np.zeros(np.broadcast_shapes(left.shape, right.shape), np.bool_)
    return np.asarray(left == right)


def _compare(op: ast.cmpop, left: Array, right: Array) -> Array:
    if isinstance(op, ast.Eq):
        return _equal(left, right)
    if isinstance(op, ast.NotEq):
        return ~_equal(left, right)
    if (left.dtype.kind == "U") != (right.dtype.kind == "U"):
        raise _ScalarNeededError
    if isinstance(op, ast.Lt):
        return np.asarray(left < right)
    if isinstance(op, ast.LtE):
        return np.asarray(left <= right)
    if isinstance(op, ast.Gt):
        return np.asarray(left > right)
    return np.asarray(left >= right)
