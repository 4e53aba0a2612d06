"""A landscape: the configs of a space, or a sample of them, each with what one device made of it.

Its valid configs are exactly the recorded ones, however large the space was that they came from: every draw, mutation,
crossover and repair of a strategy that searches it leads to a config whose outcome is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evoengine.model import Config, DeviceInfo, Evaluation, Problem, Status
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.explicit_space import listed_space
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.language.rules import problem_scope
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace


@dataclass(frozen=True)
class LandscapeSource:
    """Where a landscape comes from."""

    evoengine: str
    """Version that wrote it."""
    recorded_at: str
    """UTC, ISO 8601."""
    command: str
    checks: str
    """What each kernel had to pass before it was timed, in words."""
    sampling: str
    """Which configs were taken, in words."""
    clocks: str = ""
    """Clocks of the GPU, as far as known."""
    baseline: str = ""
    """The fastest SDPA backend and its time, in words; empty where none was timed."""


@dataclass(frozen=True, eq=False)
class RecordedFamily:
    """The recorded configs of one family."""

    space: SearchSpace
    """Tunables with the values that were recorded; constraints only tell what belongs together."""
    space_hash: str
    """SHA-256 of the search-space file, 16 hex digits."""
    template_hash: str
    valid_configs: int
    """How many the whole space had."""
    evaluations: tuple[Evaluation, ...]
    """One for each config; those with one code hash are one kernel and have the same outcome."""

    @property
    def name(self) -> str:
        """The family."""
        return self.space.family

    @cached_property
    def rows(self) -> IndexRows:
        """``[configs, tunables]``: value indices, in the order of the evaluations."""
        rows = np.empty((len(self.evaluations), len(self.space.tunables)), np.uint8)
        for axis, tunable in enumerate(self.space.tunables):
            places = {value: place for place, value in enumerate(tunable.values)}
            rows[:, axis] = [places[evaluation.config[tunable.name]] for evaluation in self.evaluations]
        return rows


@dataclass(frozen=True, eq=False)
class Landscape:
    """What :func:`evoengine.landscape.file.read_landscape` reads and a replay searches."""

    problem: Problem | None
    """None for the landscape of a foreign kernel, which has no attention problem."""
    device: DeviceInfo
    """Where it was recorded."""
    limits: Mapping[str, int]
    """The limits of that GPU, by their names in search-space files."""
    method: str
    """Name of the objective: ``graph-warm``, ``model-v4``."""
    families: tuple[RecordedFamily, ...]
    """Sorted by name."""
    provenance: LandscapeSource
    key: str = ""
    """Hash of the file's content, 16 hex digits; empty for one that was never in a file."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """All recorded outcomes, family by family."""
        return tuple(evaluation for family in self.families for evaluation in family.evaluations)

    @cached_property
    def by_config(self) -> Mapping[Config, Evaluation]:
        """The outcome of each recorded config."""
        return {evaluation.config: evaluation for evaluation in self.evaluations}

    @cached_property
    def best(self) -> Evaluation:
        """The fastest correct config.

        Raises:
            ValueError: none is correct.
        """
        correct = [evaluation for evaluation in self.evaluations if evaluation.ok]
        if not correct:
            raise ValueError("the landscape has no correct config")
        return min(correct, key=lambda evaluation: (median_us(evaluation), str(evaluation.config)))

    @property
    def counts(self) -> Mapping[Status, int]:
        """Configs by status; those that do not occur are left out."""
        found = Counter(evaluation.status for evaluation in self.evaluations)
        return {status: found[status] for status in Status if found[status]}

    @cached_property
    def spaces(self) -> FamilySpaces:
        """The recorded configs as the valid configs of a search."""
        return FamilySpaces(tuple(self._recorded_space(family) for family in self.families))

    def _recorded_space(self, family: RecordedFamily) -> ValidSpace:
        constants = ({} if self.problem is None else problem_scope(self.problem)) | dict(self.limits)
        return listed_space(family.space, constants, family.rows)


def median_us(evaluation: Evaluation) -> float:
    """The time of a correct config.

    Raises:
        ValueError: it has none.
    """
    if evaluation.timing is None:
        raise ValueError(f"config {evaluation.config.key} has no time")
    return evaluation.timing.median_us
