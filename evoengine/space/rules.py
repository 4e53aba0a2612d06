"""What a search space consists of besides its tunables: derived values, constraints, and the names they may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from evoengine.model import Problem, Value
from evoengine.space.tunables import Tunable
from evoengine.target import TARGETS

SHAPE_NAMES: Final = ("batch", "heads", "kv_heads", "seq_q", "seq_kv")
"""Axes that a launch decides: a binary serves any of them."""
TRAIT_NAMES: Final = ("head_dim", "elem_bytes", "causal", "dtype")
"""What of a problem is compiled into a binary."""
PROBLEM_NAMES: Final = frozenset(SHAPE_NAMES + TRAIT_NAMES)
LIMIT_NAMES: Final = frozenset(next(iter(TARGETS.values())).scope())


def problem_scope(problem: Problem) -> dict[str, Value]:
    """The names of a problem in expressions."""
    return {
        "batch": problem.batch,
        "heads": problem.heads,
        "kv_heads": problem.kv_heads,
        "seq_q": problem.seq_q,
        "seq_kv": problem.seq_kv,
        "head_dim": problem.head_dim,
        "elem_bytes": problem.dtype.bytes,
        "causal": problem.causal,
        "dtype": problem.dtype.value,
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
class Definition:
    """What a search-space file says."""

    family: str
    doc: str
    tunables: tuple[Tunable, ...]
    derived: tuple[Derived, ...]
    constraints: tuple[Constraint, ...]
    file: str = ""
    """Where it was loaded from, for messages."""

    @cached_property
    def by_name(self) -> Mapping[str, Tunable]:
        """Tunables by name."""
        return {tunable.name: tunable for tunable in self.tunables}
