"""Records of a search space (derived values, constraints, starts), and the names available to expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from evoengine.model import Problem, Value
from evoengine.space.language.expression import names_in
from evoengine.space.tunables import Tunable
from evoengine.target import TARGETS

SHAPE_NAMES: Final = (
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_kv",
    "rows_q",
    "rows_kv",
    "memory_batch",
    "window_left",
    "window_right",
)
"""Sizes that are launch parameters: one binary supports any value."""
TRAIT_NAMES: Final = (
    "head_dim",
    "elem_bytes",
    "dtype",
    "causal",
    "has_window_left",
    "has_window_right",
    "has_softcap",
    "has_sink",
    "has_lse",
    "packed",
)
"""Properties of a problem that are compiled into a binary."""
PROBLEM_NAMES: Final = frozenset(SHAPE_NAMES + TRAIT_NAMES)
TEXT_NAMES: Final = frozenset(("dtype",))
"""Names whose values are strings."""
LIMIT_NAMES: Final = frozenset(next(iter(TARGETS.values())).scope())
"""Limits of a target."""
NO_WINDOW: Final = -1
"""Window size in expressions for a problem without a window; a causal mask is not a window."""


def problem_scope(problem: Problem) -> dict[str, Value]:
    """Returns the values of a problem by their names in expressions."""
    return {
        "batch": problem.batch,
        "heads": problem.heads,
        "kv_heads": problem.kv_heads,
        "seq_q": problem.seq_q,
        "seq_kv": problem.seq_kv,
        "rows_q": problem.rows_q,
        "rows_kv": problem.rows_kv,
        "memory_batch": problem.memory_batch,
        "window_left": NO_WINDOW if problem.window_left is None else problem.window_left,
        "window_right": NO_WINDOW if problem.window_right is None else problem.window_right,
        "head_dim": problem.head_dim,
        "elem_bytes": problem.dtype.bytes,
        "dtype": problem.dtype.value,
        "causal": problem.causal,
        "has_window_left": problem.window_left is not None,
        "has_window_right": problem.window_right is not None,
        "has_softcap": problem.softcap > 0,
        "has_sink": problem.sink,
        "has_lse": problem.lse,
        "packed": problem.packed,
    }


@dataclass(frozen=True)
class Derived:
    """Named value computed from tunables, problem and target."""

    name: str
    expr: str
    unit: str
    doc: str


@dataclass(frozen=True)
class Constraint:
    """Rule for every config of the space, with its reason."""

    name: str
    rule: str
    reason: str


@dataclass(frozen=True)
class Start:
    """Known good config with which a search begins; tunables that it omits take their first values."""

    name: str
    doc: str
    values: tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Definition:
    """Content of a search-space file."""

    family: str
    doc: str
    tunables: tuple[Tunable, ...]
    derived: tuple[Derived, ...]
    constraints: tuple[Constraint, ...]
    file: str = ""
    """Path of the file, for messages."""
    starts: tuple[Start, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Tunable]:
        return {tunable.name: tunable for tunable in self.tunables}


@dataclass(frozen=True)
class Support:
    """Names that an expression depends on."""

    names: frozenset[str]
    """Tunables and names of the problem and the target, read directly or through derived values."""
    derived: tuple[Derived, ...]
    """Derived values on which the expression depends, in file order."""


def support_of(text: str, derived: Sequence[Derived]) -> Support:
    """Determines the names that an expression depends on, directly or through derived values.

    Args:
        text: Expression.
        derived: All derived values; each reads only earlier ones.

    Raises:
        ExpressionError: The text is not a valid expression.
    """
    names = set(names_in(text))
    needed: list[Derived] = []
    for item in reversed(derived):
        if item.name in names:
            names.remove(item.name)
            names |= names_in(item.expr)
            needed.append(item)
    return Support(frozenset(names), tuple(reversed(needed)))
