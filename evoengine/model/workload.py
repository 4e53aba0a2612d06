"""Workloads: several problems as one objective, the weighted mean of a config's times on them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Final

from evoengine.errors import ProblemError
from evoengine.model.problem import Problem

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class WorkloadPart:
    """One problem of a workload."""

    problem: Problem
    weight: float
    """Relative number of calls with this problem."""


@dataclass(frozen=True)
class Workload:
    """Weighted problems; each candidate is compiled, checked and timed for every one of them.

    Raises:
        ProblemError: The name, a weight or the sum of the weights is invalid, there are fewer than two problems, or one
            is repeated.
    """

    name: str
    """Up to 40 lower-case letters, digits, ``-`` and ``_``."""
    parts: tuple[WorkloadPart, ...]

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ProblemError(f"invalid workload name '{self.name}': use up to 40 lower-case letters, digits, - and _")
        if len(self.parts) < 2:
            raise ProblemError("a workload needs at least two problems: search a single problem without a workload")
        for part in self.parts:
            if not (math.isfinite(part.weight) and part.weight > 0):
                raise ProblemError(f"the weight of {part.problem.key} must be above 0, not {part.weight:g}")
        if not math.isfinite(sum(part.weight for part in self.parts)):
            raise ProblemError(f"the sum of the weights of workload '{self.name}' is too large: give smaller weights")
        if len({part.problem.key for part in self.parts}) < len(self.parts):
            raise ProblemError("a problem is repeated in the workload: give it once, with the sum of its weights")

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems; a row shows and exports the source for the first one."""
        return tuple(part.problem for part in self.parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """Weights normalised to the sum 1, in the order of the problems."""
        total = sum(part.weight for part in self.parts)
        return tuple(part.weight / total for part in self.parts)

    @property
    def key(self) -> str:
        """Identity in rankings: the name, and a hash of problems and shares."""
        facts = [[part.problem.key, round(share, 12)] for part, share in zip(self.parts, self.shares, strict=True)]
        return f"workload-{self.name}-{hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:12]}"
