"""Launch expressions as C++ or Python: config values are folded to numbers, the problem's axes stay variables."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from evoengine.errors import UsageError
from evoengine.kernel.records import LaunchSpec
from evoengine.model import Problem, Value
from evoengine.space.language.expression import evaluate
from evoengine.space.language.rules import SHAPE_NAMES

AXES: Final = SHAPE_NAMES
"""Names that stay variables: sizes that can change without recompiling."""
EXACT_ROWS: Final = "seq_q <= 2147483648 // ((heads // kv_heads) * (heads // kv_heads)) if PACK_GQA else True"
"""Whether a kernel finds the query of each row of a call, as the rule ``packed_rows`` of the search spaces."""

_BINARY: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
}
_DIVISION: Final[Mapping[type[ast.operator], str]] = {
    ast.FloorDiv: "evo_host::floor_div",
    ast.Mod: "evo_host::floor_mod",
}
_COMPARE: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_FUNCTIONS: Final[Mapping[str, str]] = {
    "ceil_div": "evo_host::ceil_div",
    "round_up": "evo_host::round_up",
    "min": "evo_host::min_of",
    "max": "evo_host::max_of",
}


def names_of(launch: LaunchSpec, problem: Problem) -> dict[str, Value]:
    """Returns the values of the names in a launch's expressions that are no axes."""
    return {"PACK_GQA": False, **dict(launch.names), "head_dim": problem.head_dim}


def to_cpp(text: str, names: Mapping[str, Value]) -> str:
    """Translates a launch expression to a C++ expression over ``long long`` axes.

    Args:
        text: Expression in the language of the search-space files.
        names: Config and derived values; subexpressions that use only these are folded.

    Raises:
        UsageError: A part of the expression has no C++ equivalent.
    """
    return _Translator(text, names).translate(ast.parse(text, mode="eval").body)


def to_python(text: str, names: Mapping[str, Value]) -> str:
    """Translates a launch expression to Python over ints, with ``ceil_div``, ``round_up``, ``min`` and ``max``.

    Args:
        text: Expression in the language of the search-space files.
        names: Config and derived values; subexpressions that use only these are folded.
    """
    return ast.unparse(_Folder(names).visit(ast.parse(text.strip(), mode="eval").body))


def _reads_axes(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id in AXES for part in ast.walk(node))


class _Folder(ast.NodeTransformer):
    """Replaces subexpressions that use only the config by their values, and conditionals by the selected branch."""

    def __init__(self, names: Mapping[str, Value]) -> None:
        self._names = dict(names)

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.IfExp) and not _reads_axes(node.test):
            return self.visit(node.body if evaluate(ast.unparse(node.test), self._names) else node.orelse)
        if isinstance(node, ast.expr) and not self._is_final(node) and not _reads_axes(node):
            return ast.Constant(evaluate(ast.unparse(node), self._names))
        return self.generic_visit(node)

    @staticmethod
    def _is_final(node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in _FUNCTIONS)


class _Translator:
    """Translates one expression to C++."""

    def __init__(self, text: str, names: Mapping[str, Value]) -> None:
        self._text = text
        self._names = names

    def translate(self, node: ast.expr) -> str:
        """Returns the C++ text of one node, in parentheses where precedence could matter."""
        if not _reads_axes(node):
            return self._literal(evaluate(ast.unparse(node), dict(self._names)))
        match node:
            case ast.Name(id=name):
                return name
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return f"({self.translate(left)} {_BINARY[type(op)]} {self.translate(right)})"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _DIVISION:
                return f"{_DIVISION[type(op)]}({self.translate(left)}, {self.translate(right)})"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{self.translate(operand)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(!{self.translate(operand)})"
            case ast.BoolOp(op=op, values=values):
                joint = " && " if isinstance(op, ast.And) else " || "
                return f"({joint.join(map(self.translate, values))})"
            case ast.IfExp(test=test, body=body, orelse=orelse) if not _reads_axes(test):
                return self.translate(body if evaluate(ast.unparse(test), dict(self._names)) else orelse)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return f"({self.translate(test)} ? {self.translate(body)} : {self.translate(orelse)})"
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._comparison(left, ops, comparators)
            case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if function in _FUNCTIONS:
                return self._call(_FUNCTIONS[function], args)
            case _:
                raise self._unsupported(node)

    def _comparison(self, left: ast.expr, ops: list[ast.cmpop], rights: list[ast.expr]) -> str:
        parts = []
        for op, right in zip(ops, rights, strict=True):
            if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List):
                any_of = " || ".join(f"{self.translate(left)} == {self.translate(item)}" for item in right.elts)
                parts.append(f"({any_of})" if isinstance(op, ast.In) else f"(!({any_of}))")
            elif type(op) in _COMPARE:
                parts.append(f"({self.translate(left)} {_COMPARE[type(op)]} {self.translate(right)})")
            else:
                raise self._unsupported(right)
            left = right
        return parts[0] if len(parts) == 1 else f"({' && '.join(parts)})"

    def _call(self, function: str, args: list[ast.expr]) -> str:
        texts = [self.translate(arg) for arg in args]
        # min and max take any number of arguments in launch expressions, but two in C++.
        while len(texts) > 2:
            texts[:2] = [f"{function}({texts[0]}, {texts[1]})"]
        return f"{function}({', '.join(texts)})"

    def _literal(self, value: Value) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        raise UsageError(f"launch expression '{self._text}': the text '{value}' has no C++ equivalent")

    def _unsupported(self, node: ast.AST) -> UsageError:
        return UsageError(f"launch expression '{self._text}': '{ast.unparse(node)}' has no C++ equivalent")
