"""Several problems as one objective: a kernel config that serves them all, judged by the weighted mean of its times."""

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
    """One of the problems."""

    problem: Problem
    weight: float
    """How many calls of it there are, relative to the others'."""


@dataclass(frozen=True)
class Workload:
    """Weighted problems. Each candidate config is compiled for, judged on and timed on every one of them.

    Raises:
        ProblemError: the name or a weight cannot be, there are fewer than two problems, or one stands twice.
    """

    name: str
    """Lower-case letters, digits, - and _."""
    parts: tuple[WorkloadPart, ...]

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ProblemError(f"'{self.name}' is no name of a workload: up to 40 lower-case letters, digits, - and _")
        if len(self.parts) < 2:
            raise ProblemError("a workload has at least two problems: search a single one by itself")
        for part in self.parts:
            if not (math.isfinite(part.weight) and part.weight > 0):
                raise ProblemError(f"the weight of {part.problem.key} must be above 0, not {part.weight:g}")
        if len({part.problem.key for part in self.parts}) < len(self.parts):
            raise ProblemError("a problem stands twice in the workload: give it once, with the sum of the weights")

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems. The first one's source is what a row shows and exports."""
        return tuple(part.problem for part in self.parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights, made to sum up to 1; in the order of the problems."""
        total = sum(part.weight for part in self.parts)
        return tuple(part.weight / total for part in self.parts)

    @property
    def key(self) -> str:
        """Identity in rankings: the name and a hash of problems and shares."""
        facts = [[part.problem.key, round(share, 12)] for part, share in zip(self.parts, self.shares, strict=True)]
        return f"workload-{self.name}-{hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:12]}"
