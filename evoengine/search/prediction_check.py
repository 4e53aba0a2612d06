"""Verification of predictions: predicted elites of a leaderboard are measured, and both times are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evoengine.leaderboard.records import Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Evaluation, executed_by_config
from evoengine.space.explicit_space import ExplicitSpace, with_rows
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace
from evoengine.statistics import rank_correlation


@dataclass(frozen=True)
class VerifiedElite:
    """A predicted elite and the evaluation of its config on a device."""

    row: Row
    """Row of the prediction."""
    rank: int
    """Rank among the verified predictions, from 1 for the fastest predicted."""
    evaluation: Evaluation | None
    """None if the config was not evaluated: it is not valid on this device, or the run was interrupted."""
    measured_us: float | None
    """Measured time; for a duplicate, that of the kernel that it repeats."""

    @property
    def config(self) -> Config:
        return self.row.full_config

    @property
    def ratio(self) -> float | None:
        """Measured over predicted time."""
        if self.measured_us is None or not self.row.median_us:
            return None
        return self.measured_us / self.row.median_us


@dataclass(frozen=True)
class PredictionAccuracy:
    """Accuracy of predictions, over the elites with both times."""

    compared: int
    spearman: float | None
    """Rank correlation; None below three elites, or if all times are equal."""
    median_ratio: float | None
    """Median of measured over predicted time."""
    best: VerifiedElite | None
    """The fastest measured elite."""
    first: VerifiedElite | None
    """The fastest predicted elite."""


def predicted_elites(board: Leaderboard, problem: str, target: str | None = None) -> list[Row]:
    """The predicted rows of a problem, each machine code once, best first.

    Predictions for different GPUs or by different models are separate rankings; the one with the newest row is used.

    Args:
        board: Leaderboard with the predictions.
        problem: Key of the problem.
        target: Name of the predicted GPU; None for any.

    Raises:
        StoreError: The leaderboard cannot be read.
    """
    wanted = RowFilter(problem=problem, device_kind="emulator", device=target, predicted=True)
    rows = board.rows(wanted)
    if not rows:
        return []
    newest = max(rows, key=lambda row: row.id).scope
    found: dict[str, Row] = {}
    for row in sorted((row for row in rows if row.scope == newest), key=lambda row: row.rank or 0):
        found.setdefault(row.code_hash or str(row.id), row)
    return list(found.values())


def restrict_to(spaces: FamilySpaces, configs: Sequence[Config]) -> FamilySpaces | None:
    """Restricts spaces to the given configs. Invalid ones are left out; None if none is left."""
    members = tuple(
        listed
        for member in spaces.members
        if (listed := _listed(member, [config for config in configs if config.family == member.family])) is not None
    )
    return FamilySpaces(members) if members else None


def _listed(space: ValidSpace, configs: Sequence[Config]) -> ExplicitSpace | None:
    rows = [row for config in dict.fromkeys(configs) if (row := space.row_of(config)) is not None]
    if not rows:
        return None
    return with_rows(space, np.stack(rows))


def match_evaluations(elites: Sequence[Row], evaluations: Sequence[Evaluation]) -> list[VerifiedElite]:
    """Matches predicted elites with evaluations by config, in the order of the elites."""
    by_key = {evaluation.config.key: evaluation for evaluation in evaluations}
    executed = executed_by_config(evaluations)
    found = []
    for rank, row in enumerate(elites, 1):
        key = row.full_config.key
        timed = executed.get(key)
        found.append(VerifiedElite(row, rank, by_key.get(key), None if timed is None else timed.value_us))
    return found


def prediction_accuracy(entries: Sequence[VerifiedElite]) -> PredictionAccuracy:
    """Compares predicted and measured times."""
    both = [entry for entry in entries if entry.ratio is not None]
    if not both:
        return PredictionAccuracy(0, None, None, None, None)
    measured = np.array([entry.measured_us for entry in both], float)
    predicted = np.array([entry.row.median_us for entry in both], float)
    return PredictionAccuracy(
        compared=len(both),
        spearman=rank_correlation(predicted, measured) if len(both) > 2 else None,
        median_ratio=float(np.median(measured / predicted)),
        best=both[int(measured.argmin())],
        first=both[0],
    )
