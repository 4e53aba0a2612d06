"""Landscape: the configs of a space, or a sample of them, each with its outcome on one device.

Its valid configs are exactly the recorded ones, however large the original space was. Every draw, mutation, crossover
and repair of a strategy that searches it therefore yields a config with a known outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from evoengine.model import Config, DeviceInfo, Evaluation, Problem, Status
from evoengine.space.explicit_space import listed_space
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.index_rows import IndexRows
from evoengine.space.language.rules import problem_scope
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace

MAX_CONFIGS: Final = 1 << 19
"""Maximum number of configs of all families. One takes 2 to 4 KB of memory, and in a compressed file any fraction of a
byte."""


@dataclass(frozen=True)
class LandscapeSource:
    """Provenance of a landscape."""

    evoengine: str
    """Version that wrote the landscape."""
    recorded_at: str
    """UTC, ISO 8601."""
    command: str
    checks: str
    """Checks that each kernel passed before it was timed, in words."""
    sampling: str
    """How the recorded configs were chosen, in words."""
    clocks: str = ""
    """GPU clocks, as far as known."""
    baseline: str = ""
    """Fastest SDPA backend and its time, in words; empty if none was timed."""


@dataclass(frozen=True, eq=False)
class RecordedFamily:
    """Recorded configs of one family."""

    space: SearchSpace
    """Tunables with the recorded values. Validity follows from the recorded configs; the constraints only group
    tunables that depend on each other."""
    space_hash: str
    """SHA-256 of the search-space file, 16 hex digits."""
    template_hash: str
    valid_configs: int
    """Number of valid configs of the whole space."""
    evaluations: tuple[Evaluation, ...]
    """One evaluation per config. Configs with the same code hash are the same kernel and share one outcome."""

    @property
    def name(self) -> str:
        return self.space.family

    @cached_property
    def rows(self) -> IndexRows:
        """Value indices ``[configs, tunables]``, in the order of the evaluations."""
        rows = np.empty((len(self.evaluations), len(self.space.tunables)), np.uint8)
        for axis, tunable in enumerate(self.space.tunables):
            indices = {value: index for index, value in enumerate(tunable.values)}
            rows[:, axis] = [indices[evaluation.config[tunable.name]] for evaluation in self.evaluations]
        return rows


@dataclass(frozen=True, eq=False)
class Landscape:
    """Recorded outcomes that :func:`evoengine.landscape.file.read_landscape` reads and a replay searches."""

    problem: Problem | None
    """None for a foreign kernel, which has no attention problem."""
    device: DeviceInfo
    """Device that the outcomes were recorded on."""
    limits: Mapping[str, int]
    """Limits of that GPU, by their names in search-space files."""
    method: str
    """Name of the objective: ``graph-warm``, ``model-v18``."""
    families: tuple[RecordedFamily, ...]
    """Sorted by name."""
    provenance: LandscapeSource
    key: str = ""
    """Hash of the content in file format, 16 hex digits; empty until :func:`evoengine.landscape.file.keyed` sets it."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """All recorded outcomes, family by family."""
        return tuple(evaluation for family in self.families for evaluation in family.evaluations)

    @cached_property
    def by_config(self) -> Mapping[Config, Evaluation]:
        return {evaluation.config: evaluation for evaluation in self.evaluations}

    @cached_property
    def best(self) -> Evaluation:
        """The fastest correct config.

        Raises:
            ValueError: No config is correct.
        """
        correct = [evaluation for evaluation in self.evaluations if evaluation.ok]
        if not correct:
            raise ValueError("the landscape has no correct config")
        return min(correct, key=lambda evaluation: (median_us(evaluation), str(evaluation.config)))

    @property
    def counts(self) -> Mapping[Status, int]:
        """Number of configs of each status that occurs."""
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
    """Returns the time of a correct config.

    Raises:
        ValueError: The evaluation has no timing.
    """
    if evaluation.timing is None:
        raise ValueError(f"config {evaluation.config.key} has no time")
    return evaluation.timing.median_us
