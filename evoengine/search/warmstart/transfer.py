"""Transfer: configs that were fast for a similar problem, or on another GPU, are tried first.

The distance between two searches is a sum over their axes, in doublings: twice the number of keys is one step. Searches
are comparable only if they agree in the element type and in the number of 64-wide tiles of the head dimension, which
determine what fits on the GPU. The best rows of the nearest earlier searches are transferred, each repaired to the
nearest config that is valid here. Only rows older than the study count, so that a resumed study starts with the same
ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from evoengine.leaderboard.records import Row, RowFilter, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Problem, ProblemDistance
from evoengine.space.family_spaces import FamilySpaces

MAX_TRANSFERRED: Final = 6
"""Maximum number of transferred configs."""
PER_SEARCH: Final = 2
"""Maximum number of rows from one problem on one device."""
MAX_DISTANCE: Final = 8.0
"""Maximum distance of a search, in steps."""

_TILE: Final = 64
_MASK: Final = 1.0
_EXTRA: Final = 0.5
_DEVICE: Final = 1.0
_ARCH: Final = 1.0
_PREDICTED: Final = 2.0


@dataclass(frozen=True)
class Transferred:
    """A transferred row and its config here."""

    row: Row
    config: Config
    """Nearest config that is valid here."""
    distance: float
    """Distance of the search that the row comes from, in steps."""

    @property
    def repaired(self) -> bool:
        """Whether the row's own config is invalid here."""
        return self.config != self.row.full_config


def problem_distance(a: Problem, b: Problem) -> float | None:
    """Distance between two problems in steps; None when they are not comparable.

    Each doubling of batch x heads, of query rows, of keys and of the heads per K/V head is one step, and so is a mask
    that only one of them has. Softcap, sink, log-sum-exp and packed lengths are half a step each.
    """
    if a.dtype != b.dtype or math.ceil(a.head_dim / _TILE) != math.ceil(b.head_dim / _TILE):
        return None
    apart = ProblemDistance.of(a, b)
    return apart.sizes + apart.head_dim + _MASK * apart.masks + _EXTRA * apart.extras


def device_distance(a: DeviceInfo, b: DeviceInfo) -> float:
    """Distance between two devices: one step for another GPU, one for another architecture, two for predictions."""
    other_gpu = (a.kind, a.name) != (b.kind, b.name)
    return _DEVICE * other_gpu + _ARCH * (a.arch != b.arch) + _PREDICTED * (a.predicted != b.predicted)


def transferred(board: Leaderboard, study: Study, spaces: FamilySpaces) -> list[Transferred]:
    """The transferred configs of a study, nearest search first; each config once.

    Raises:
        StoreError: The leaderboard cannot be read.
    """
    found: dict[Config, Transferred] = {}
    for distance, other in _near(board.studies(), study):
        for row in _elites(board, study, other, spaces):
            config = spaces.repair(row.family, row.config)
            found.setdefault(config, Transferred(row, config, distance))
            if len(found) == MAX_TRANSFERRED:
                return list(found.values())
    return list(found.values())


def _near(studies: list[Study], here: Study) -> Iterator[tuple[float, Study]]:
    """One study for each scope within the maximum distance, nearest first."""
    scopes: dict[str, tuple[float, Study]] = {}
    for other in studies:
        apart = problem_distance(here.key.problem, other.key.problem)
        if other.id < here.id and apart is not None:
            distance = apart + device_distance(here.key.device, other.key.device)
            if distance <= MAX_DISTANCE:
                scopes.setdefault(other.scope.key, (distance, other))
    yield from sorted(scopes.values(), key=lambda entry: (entry[0], entry[1].id))


def _elites(board: Leaderboard, here: Study, other: Study, spaces: FamilySpaces) -> list[Row]:
    """The fastest rows of a scope that are older than a study, of its families and with distinct machine code."""
    elites: dict[str, Row] = {}
    for row in _older_rows(board, here, other):
        if row.family in spaces.families:
            elites.setdefault(row.code_hash or str(row.id), row)
        if len(elites) == PER_SEARCH:
            break
    return list(elites.values())


def _older_rows(board: Leaderboard, here: Study, other: Study) -> list[Row]:
    """The rows of a scope that are older than a study, fastest first.

    Their order does not follow from ranks, which a later row with the same machine code may change.
    """
    scope = other.scope
    wanted = RowFilter(
        problem=scope.problem,
        device_kind=scope.device_kind,
        device=scope.device,
        arch=scope.arch,
        method=scope.method,
        predicted=scope.predicted,
    )
    timed = [
        (row.median_us, row.id, row)
        for row in board.rows(wanted)
        if row.median_us is not None and row.study_id < here.id and row.created_at <= here.created_at
    ]
    return [row for _, _, row in sorted(timed, key=lambda entry: entry[:2])]
