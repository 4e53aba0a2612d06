"""Vectorised evaluation of expressions: names are bound to NumPy arrays that broadcast against each other.

:func:`evaluate_array` evaluates a whole expression, :func:`combine` a single operation. Where NumPy would differ from
Python (a zero divisor after an ``and``, 64-bit overflow, strings mixed with numbers), the scalar evaluator is applied
to each element, so that both evaluators always agree.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Value
from evoengine.space.language.expression import evaluate, operands, parse
from evoengine.space.language.steps import CODE_BYTES_PER_STEP, SCALAR_STEPS, spend

Array = npt.NDArray[Any]

_LIMIT: Final = float(2**62)


class ScalarNeededError(Exception):
    """NumPy's result could differ from Python's, so the scalar evaluator is needed."""


def evaluate_array(text: str, scope: Mapping[str, Array]) -> Array:
    """Evaluates an expression over arrays.

    Args:
        text: Expression.
        scope: Integer, boolean or string arrays of mutually broadcastable shapes; 0-d arrays are constants.

    Returns:
        Array with the broadcast shape of the names that the expression reads.

    Raises:
        ExpressionError: :func:`evoengine.space.language.expression.evaluate` raises it for an element.
    """
    expression = parse(text)
    if not expression.names <= scope.keys():
        evaluate(text, {})  # raises an error that names what is unknown
    try:
        return _visit(expression.tree.body, scope)
    except ScalarNeededError:
        return _element_wise(text, {name: scope[name] for name in sorted(expression.names)})


def _element_wise(text: str, scope: Mapping[str, Array]) -> Array:
    if not scope:
        return np.asarray(evaluate(text, {}))
    elements = math.prod(np.broadcast_shapes(*(array.shape for array in scope.values())))
    spend(elements * (SCALAR_STEPS + len(parse(text).code.co_code) // CODE_BYTES_PER_STEP))
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
    result = combine(node, [_visit(operand, scope) for operand in operands(node)])
    spend(result.size)
    return result


def combine(node: ast.expr, values: Sequence[Array]) -> Array:
    """Computes one operation.

    Args:
        node: Operation of a parsed expression, neither a name nor a constant.
        values: One array per operand, in the order of :func:`evoengine.space.language.expression.operands`.

    Raises:
        ScalarNeededError: The value, or an error, must be determined by the scalar evaluator.
    """
    match node:
        case ast.BinOp(op=op):
            return _arithmetic(type(op), values[0], values[1])
        case ast.UnaryOp(op=ast.Not()):
            return ~truth(values[0])
        case ast.UnaryOp(op=op):
            return -_number(values[0]) if isinstance(op, ast.USub) else _number(values[0])
        case ast.Call(func=ast.Name(id=function)):
            return _call(function, [_number(value) for value in values])
        case ast.IfExp():
            return _choose(truth(values[0]), values[1], values[2])
        case ast.BoolOp(op=op):
            return _connect(isinstance(op, ast.And), values)
        case ast.Compare():
            return _comparison(node, values)
    raise ScalarNeededError


def _number(array: Array) -> Array:
    if array.dtype.kind not in "bi":
        raise ScalarNeededError
    return array.astype(np.int64, copy=False)


def truth(array: Array) -> npt.NDArray[np.bool_]:
    """Returns ``bool()`` of each element."""
    return array != "" if array.dtype.kind == "U" else array.astype(np.bool_)


def _largest(array: Array) -> float:
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))


def _divisor(array: Array) -> Array:
    if not array.all():
        raise ScalarNeededError
    return array


def _arithmetic(op: type[ast.operator], left: Array, right: Array) -> Array:
    a, b = _number(left), _number(right)
    if op is ast.FloorDiv:
        return a // _divisor(b)
    if op is ast.Mod:
        return a % _divisor(b)
    sizes = (_largest(a), _largest(b))
    if (sizes[0] * sizes[1] if op is ast.Mult else sum(sizes)) >= _LIMIT:
        raise ScalarNeededError
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
        raise ScalarNeededError
    return np.where(test, body, orelse)


def _connect(conjunction: bool, values: Sequence[Array]) -> Array:
    """Computes ``and`` or ``or``, whose value is one of the operands as in Python."""
    result = values[0]
    for value in values[1:]:
        holds = truth(result)
        result = _choose(holds, value, result) if conjunction else _choose(holds, result, value)
    return result


def _comparison(node: ast.Compare, values: Sequence[Array]) -> Array:
    rest = iter(values)
    left = next(rest)
    result: Array = np.ones((), np.bool_)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        if isinstance(comparator, ast.Tuple):
            found: Array = np.zeros((), np.bool_)
            for _ in comparator.elts:
                found = found | _equal(left, next(rest))
            part = ~found if isinstance(op, ast.NotIn) else found
        else:
            right = next(rest)
            part = _compare(op, left, right)
            left = right
        result = result & part
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
        raise ScalarNeededError
    if isinstance(op, ast.Lt):
        return np.asarray(left < right)
    if isinstance(op, ast.LtE):
        return np.asarray(left <= right)
    if isinstance(op, ast.Gt):
        return np.asarray(left > right)
    return np.asarray(left >= right)
