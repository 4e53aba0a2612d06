"""Records of a search space (derived values, constraints, starts), and the names available to expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from evoengine.errors import SearchSpaceError
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
MAX_TUNABLES: Final = 100
MAX_RULES: Final = 128
"""Maximum number of derived values, and of constraints besides those that conditions imply."""
MAX_LEVELS: Final = 16
"""Maximum length of a chain of derived values; a rule is evaluated with all of them inlined."""
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
    def names(self) -> frozenset[str]:
        """Names of the tunables and derived values."""
        return frozenset((*self.by_name, *(item.name for item in self.derived)))

    @cached_property
    def by_name(self) -> Mapping[str, Tunable]:
        return {tunable.name: tunable for tunable in self.tunables}


def check_size(definition: Definition) -> None:
    """Checks that a space is within the limits of the algorithms on it.

    Raises:
        SearchSpaceError: It has too many entries, or derived values that read each other through too many levels.
    """
    limits = (("tunables", MAX_TUNABLES), ("derived", MAX_RULES), ("constraints", 2 * MAX_RULES))
    for key, most in limits:
        count = len(getattr(definition, key))
        if count > most:
            raise SearchSpaceError(definition.file, key, f"has {count} entries, at most {most} are allowed")
    levels: dict[str, int] = {}
    for item in definition.derived:
        levels[item.name] = 1 + max((levels.get(name, 0) for name in names_in(item.expr)), default=0)
        if levels[item.name] > MAX_LEVELS:
            reason = f"reads other derived values through more than {MAX_LEVELS} levels"
            raise SearchSpaceError(definition.file, f"derived.{item.name}", reason)


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
