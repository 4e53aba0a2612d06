"""Expression language of search spaces and launch plans: integer arithmetic, comparisons and conditionals over names.

A text is parsed once, checked against a whitelist of syntax nodes, compiled and cached. Only whitelisted syntax reaches
``eval``: no attributes, subscripts or ``**``, and no calls except those of :data:`FUNCTIONS`. There are no loops, so
the number of steps is the number of operations; every intermediate integer fits 64 bits.
"""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from evoengine.documents.escaping import printable
from evoengine.model import Value

MAX_LENGTH: Final = 2000
"""Maximum length of a text in characters."""
MAX_DEPTH: Final = 100
"""Maximum depth of nested operations."""
MAX_OPERATIONS: Final = 500
"""Maximum number of operations; names and constants count half."""
_SHOWN: Final = 160
"""Characters of a text that an error repeats."""
_MAX_INT: Final = 2**63 - 1


class ExpressionError(ValueError):
    """A text is not a valid expression, or cannot be evaluated; the message is one line."""


def _fit(value: int) -> int:
    """Returns an intermediate value.

    Raises:
        OverflowError: It does not fit 64 bits.
    """
    if -_MAX_INT <= value <= _MAX_INT:
        return value
    raise OverflowError


def _ceil_div(a: int, b: int) -> int:
    """Returns ``a / b``, rounded up."""
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    """Returns the smallest multiple of ``b`` that is at least ``a``."""
    return _fit(_ceil_div(a, b) * b)


FUNCTIONS: Final[Mapping[str, Callable[..., int]]] = {
    "ceil_div": _ceil_div,
    "round_up": _round_up,
    "min": min,
    "max": max,
}
"""Functions available in expressions."""

_FIT: Final = "fit!"
"""Name of :func:`_fit` in compiled code; no text can spell it."""
_GLOBALS: Final[dict[str, Any]] = {"__builtins__": {}, **FUNCTIONS, _FIT: _fit}

_GROWING: Final = (ast.Add, ast.Sub, ast.Mult)
"""Operations whose result can leave the range of their operands."""
_BINARY: Final = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_UNARY: Final = (ast.USub, ast.UAdd, ast.Not)
_COMPARE: Final = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_SPELLING: Final[Mapping[type[ast.AST], str]] = {
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Div: "/ (use // or ceil_div)",
    ast.Attribute: "attribute access",
    ast.Subscript: "subscripts",
    ast.Call: "this call",
    ast.Lambda: "lambda",
    ast.Tuple: "a tuple outside of 'in (…)'",
    ast.JoinedStr: "f-strings",
    ast.NamedExpr: ":=",
    ast.Is: "is",
    ast.IsNot: "is not",
}


@dataclass(frozen=True)
class Expression:
    """Checked expression with its syntax tree, its code and the names that it reads."""

    text: str
    tree: ast.Expression
    checked: ast.Expression
    """The tree with a check of the result of each growing operation."""
    code: CodeType
    names: frozenset[str]
    numeric: frozenset[str]
    """Names that are operands of arithmetic and must therefore hold numbers."""


def evaluate(text: str, scope: Mapping[str, Value]) -> Value:
    """Evaluates an expression.

    Args:
        text: Expression, for example ``"ceil_div(seq_q, BLOCK_M)"``.
        scope: Values by name; unused names are ignored.

    Raises:
        ExpressionError: Forbidden syntax, an unknown name, a division by zero, or a string in place of a number.
    """
    expression = parse(text)
    try:
        used = {name: scope[name] for name in expression.names}
    except KeyError:
        unknown = ", ".join(sorted(expression.names - set(scope)))
        raise _error(text, f"unknown name {unknown}") from None
    for name in expression.numeric:
        if isinstance(used[name], str):
            raise _error(text, f"cannot calculate with {name}, it holds the text {used[name]!r}")
    try:
        # Safe to eval: parse() compiled it from a tree that holds whitelisted nodes only.
        result: Value = eval(expression.code, _GLOBALS, used)  # noqa: S307
    except ZeroDivisionError:
        raise _error(text, "division by zero") from None
    except OverflowError:
        raise _error(text, "a value beyond 64 bits") from None
    except TypeError:
        raise _error(text, "compares or combines text with a number") from None
    return result


class ExpressionBatch:
    """Named expressions compiled into one code object, for repeated evaluation; each may read earlier ones.

    Args:
        items: Names and expressions.
        numbers: Names that never hold strings. Other names must not be operands of arithmetic.
    """

    def __init__(self, items: Sequence[tuple[str, str]], numbers: Collection[str]) -> None:
        self._names = [name for name, _ in items]
        known = {*numbers, *self._names}
        try:
            parsed = [parse(text) for _, text in items]
        except ExpressionError:
            parsed = []
        self._is_plain = len(parsed) == len(items) and all(one.numeric <= known for one in parsed)
        body: list[ast.stmt] = [
            ast.Assign([ast.Name(name, ast.Store(), lineno=1, col_offset=0)], one.checked.body, lineno=1, col_offset=0)
            for name, one in zip(self._names, parsed, strict=False)
        ]
        self._code = compile(ast.Module(body, []), "<expressions>", "exec")

    def run(self, scope: dict[str, Value]) -> bool:
        """Adds the values of all expressions to a scope.

        Returns:
            False if an expression fails; the scope is then invalid, and :func:`evaluate` on each expression raises
            the error.
        """
        if not self._is_plain or not scope.keys().isdisjoint(FUNCTIONS):
            return False
        try:
            exec(self._code, _GLOBALS, scope)  # noqa: S102 - as in evaluate(), whitelisted nodes only
        except (ArithmeticError, NameError, TypeError):
            return False
        return not any(isinstance(scope[name], str) for name in self._names)


def evaluate_int(text: str, scope: Mapping[str, Value]) -> int:
    """Evaluates an expression that must yield an integer (not a boolean).

    Raises:
        ExpressionError: As for :func:`evaluate`, or the value is not an integer.
    """
    value = evaluate(text, scope)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _error(text, f"not an integer but {value!r}")
    return value


def names_in(text: str) -> frozenset[str]:
    """Returns the names that an expression reads, without functions.

    Raises:
        ExpressionError: The text is not a valid expression.
    """
    return parse(text).names


@functools.lru_cache(maxsize=1024)
def inline(text: str, definitions: tuple[tuple[str, str], ...]) -> str:
    """Replaces names by the expressions that define them, until none is left; results are cached.

    Args:
        text: Expression.
        definitions: Names and their expressions; none depends on itself.

    Returns:
        The expression; ``text`` itself if it uses none of the names.

    Raises:
        ExpressionError: An expression is invalid, or the result is too large.
    """
    known = dict(definitions)
    while used := parse(text).names & known.keys():
        trees = {name: parse(known[name]).tree.body for name in used}
        text = ast.unparse(_Definitions(trees).visit(_tree_of(text)))
    return text


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Checks and compiles an expression; results are cached.

    Raises:
        ExpressionError: The text is not a valid expression.
    """
    if len(text) > MAX_LENGTH:
        raise _error(text[:40] + "…", f"longer than {MAX_LENGTH} characters")
    if "\\" in text or not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise _error(printable(text), "a backslash or control character")
    try:
        tree = _tree_of(text)
        reason = _size_objection(tree) or _objection(tree.body)
        checked = _Checks().visit(_tree_of(text)) if not reason else tree
        code = compile(ast.fix_missing_locations(checked), "<expression>", "eval") if not reason else None
    except RecursionError:
        raise _error(text, "too deeply nested") from None
    except (SyntaxError, ValueError, MemoryError):
        raise _error(text, "not an expression") from None
    if code is None:
        raise _error(text, reason)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    names = frozenset(node.id for node in loads)
    misused = sorted(names & FUNCTIONS.keys())
    if misused:
        raise _error(text, f"{misused[0]} is a function: call it")
    return Expression(text, tree, checked, code, names, _numeric_names(text, tree))


def _tree_of(text: str) -> ast.Expression:
    """Parses a text; to parse it again is many times faster than to copy the tree."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyntaxWarning)  # such as of ``1or 2``: a SyntaxError then
        return ast.parse(text.strip(), mode="eval")


def _error(text: str, reason: str) -> ExpressionError:
    return ExpressionError(f"{reason} in `{' '.join(text.split())[:_SHOWN]}`")


class _Definitions(ast.NodeTransformer):
    """Replaces names by syntax trees."""

    def __init__(self, trees: Mapping[str, ast.expr]) -> None:
        self._trees = trees

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._trees.get(node.id, node)


class _Checks(ast.NodeTransformer):
    """Wraps each growing operation in a call of :func:`_fit`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        return ast.Call(ast.Name(_FIT, ast.Load()), [node], []) if isinstance(node.op, _GROWING) else node


def _size_objection(tree: ast.Expression) -> str:
    """Returns why a syntax tree is too large; empty if it is not."""
    level: list[ast.AST] = [tree.body]
    operations = 0
    for _ in range(MAX_DEPTH):
        operations += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if not level:
            return f"more than {MAX_OPERATIONS} operations" if operations > 2 * MAX_OPERATIONS else ""
    return f"nested deeper than {MAX_DEPTH} levels"


def _objection(node: ast.expr) -> str:
    """Returns why a syntax tree is rejected; empty if all of it is allowed."""
    reason = _own_objection(node)
    if reason:
        return reason
    for child in operands(node):
        reason = _objection(child)
        if reason:
            return reason
    return ""


def _own_objection(node: ast.expr) -> str:
    match node:
        case ast.Name() | ast.IfExp() | ast.BoolOp():
            return ""
        case ast.Constant(value=value):
            if isinstance(value, int) and value > _MAX_INT:
                return "number beyond 64 bits"
            return "" if isinstance(value, int | str) else f"constant {value!r} is not allowed"
        case ast.BinOp(op=op):
            return "" if isinstance(op, _BINARY) else _forbidden(op)
        case ast.UnaryOp(op=op):
            return "" if isinstance(op, _UNARY) else _forbidden(op)
        case ast.Compare(ops=ops, comparators=comparators):
            return _compare_objection(ops, comparators)
        case ast.Call():
            return _call_objection(node)
    return _forbidden(node)


def _compare_objection(ops: list[ast.cmpop], comparators: list[ast.expr]) -> str:
    for op, right in zip(ops, comparators, strict=True):
        if not isinstance(op, _COMPARE):
            return _forbidden(op)
        membership = isinstance(op, ast.In | ast.NotIn)
        if membership and not isinstance(right, ast.Tuple):
            return "'in' needs a tuple such as (1, 2) on its right"
        if membership and len(ops) > 1:
            return "'in' inside a chain of comparisons is not allowed"
        if not membership and isinstance(right, ast.Tuple):
            return _forbidden(right)
    return ""


def _call_objection(node: ast.Call) -> str:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        return f"only {', '.join(FUNCTIONS)} can be called"
    name, count = node.func.id, len(node.args)
    if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
        return f"{name} takes plain arguments only"
    if name in ("min", "max"):
        return "" if count >= 2 else f"{name} takes at least 2 arguments, not {count}"
    return "" if count == 2 else f"{name} takes 2 arguments, not {count}"


def _forbidden(node: ast.AST) -> str:
    return f"{_SPELLING.get(type(node), type(node).__name__)} is not allowed"


def operands(node: ast.expr) -> Iterator[ast.expr]:
    """Yields the operands of a node, left to right: arguments of a call, elements of the tuple after ``in``."""
    match node:
        case ast.Call(args=args):
            yield from args
        case ast.Compare(left=left, comparators=comparators):
            yield left
            for right in comparators:
                if isinstance(right, ast.Tuple):
                    yield from right.elts
                else:
                    yield right
        case _:
            yield from (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _numeric_names(text: str, tree: ast.Expression) -> frozenset[str]:
    """Returns the names whose values reach arithmetic; raises for string constants there, as in ``'a' * 9``."""
    names: set[str] = set()
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            operands = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            operands = [node.operand]
        elif isinstance(node, ast.Call):
            operands = node.args
        for leaf in (leaf for operand in operands for leaf in _value_leaves(operand)):
            if isinstance(leaf, ast.Name):
                names.add(leaf.id)
            elif isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                raise _error(text, f"cannot calculate with the text {leaf.value!r}")
    return frozenset(names)


def _value_leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yields the names and constants whose value a node can return unchanged."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _value_leaves(body)
            yield from _value_leaves(orelse)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _value_leaves(value)
        case ast.Name() | ast.Constant():
            yield node
