"""What a search space consists of besides its tunables: derived values, constraints, and the names they may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from evoengine.model import Problem, Value
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
"""Sizes that a launch decides: a binary serves any of them."""
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
"""What of a problem is compiled into a binary."""
PROBLEM_NAMES: Final = frozenset(SHAPE_NAMES + TRAIT_NAMES)
TEXT_NAMES: Final = frozenset(("dtype",))
"""Those that are words."""
LIMIT_NAMES: Final = frozenset(next(iter(TARGETS.values())).scope())
NO_WINDOW: Final = -1
"""What a window size is in expressions where the problem has none; ``causal`` is no window."""


def problem_scope(problem: Problem) -> dict[str, Value]:
    """The names of a problem in expressions."""
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
    """A named value that follows from tunables, problem and target."""

    name: str
    expr: str
    unit: str
    doc: str


@dataclass(frozen=True)
class Constraint:
    """A rule that every config of the space obeys, and why."""

    name: str
    rule: str
    reason: str


@dataclass(frozen=True)
class Start:
    """A config that somebody found good, for a search to begin with: tunables not named take their first values."""

    name: str
    doc: str
    values: tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Definition:
    """What a search-space file says."""

    family: str
    doc: str
    tunables: tuple[Tunable, ...]
    derived: tuple[Derived, ...]
    constraints: tuple[Constraint, ...]
    file: str = ""
    """Where it was loaded from, for messages."""
    starts: tuple[Start, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Tunable]:
        """Tunables by name."""
        return {tunable.name: tunable for tunable in self.tunables}
