"""Warm start: what was fast for a near problem, or on another GPU, is tried first.

How far apart two searches are is a sum over their axes, in doublings: a problem of twice the keys is one step away. To
be compared at all they must agree in the element type and in the head dimension's tiles of 64, which decide what fits.
The best rows of the nearest earlier searches are taken over, each moved to the nearest config that is valid here. Only
rows that are older than the study count, so that a resumed study begins with the same ones.
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

MOST: Final = 6
"""Rows that are taken over."""
PER_SEARCH: Final = 2
"""Rows of one problem on one device."""
FARTHEST: Final = 8.0
"""Steps; what is farther away is not taken over."""

_TILE: Final = 64
_MASK: Final = 1.0
_EXTRA: Final = 0.5
_DEVICE: Final = 1.0
_ARCH: Final = 1.0
_PREDICTED: Final = 2.0


@dataclass(frozen=True)
class Transferred:
    """A row that gave a config to begin with."""

    row: Row
    config: Config
    """The nearest config that is valid here."""
    distance: float
    """Between where the row comes from and here, in steps."""

    @property
    def repaired(self) -> bool:
        """Whether the row's own config is not valid here."""
        return self.config != Config.of(self.row.family, self.row.config)


def problem_distance(a: Problem, b: Problem) -> float | None:
    """How far apart two problems are; None when nothing can be learned from one for the other.

    Doublings of batch x heads, of query rows, of keys and of the heads that share a K/V head count one each; so does a
    mask that only one of them has. Softcap, sink, log-sum-exp and packed lengths count half.
    """
    if a.dtype != b.dtype or math.ceil(a.head_dim / _TILE) != math.ceil(b.head_dim / _TILE):
        return None
    apart = ProblemDistance.of(a, b)
    return apart.sizes + apart.head_dim + _MASK * apart.masks + _EXTRA * apart.extras


def device_distance(a: DeviceInfo, b: DeviceInfo) -> float:
    """How far apart two devices are: one step for another GPU, one for another architecture, two for predictions."""
    another = (a.kind, a.name) != (b.kind, b.name)
    return _DEVICE * another + _ARCH * (a.arch != b.arch) + _PREDICTED * (a.predicted != b.predicted)


def transferred(board: Leaderboard, study: Study, spaces: FamilySpaces) -> list[Transferred]:
    """The rows to begin a study with, nearest first; each config once.

    Raises:
        StoreError: the leaderboard cannot be read.
    """
    found: dict[Config, Transferred] = {}
    for distance, other in _near(board.studies(), study):
        for row in _elites(board, study, other, spaces):
            config = spaces.repair(row.family, row.config)
            found.setdefault(config, Transferred(row, config, distance))
            if len(found) == MOST:
                return list(found.values())
    return list(found.values())


def _near(studies: list[Study], here: Study) -> Iterator[tuple[float, Study]]:
    """One study for each scope that is near, nearest first."""
    scopes: dict[str, tuple[float, Study]] = {}
    for other in studies:
        apart = problem_distance(here.key.problem, other.key.problem)
        if other.id < here.id and apart is not None:
            distance = apart + device_distance(here.key.device, other.key.device)
            if distance <= FARTHEST:
                scopes.setdefault(other.scope.key, (distance, other))
    yield from sorted(scopes.values(), key=lambda entry: (entry[0], entry[1].id))


def _elites(board: Leaderboard, here: Study, other: Study, spaces: FamilySpaces) -> list[Row]:
    """The fastest rows of a scope that are older than a study, of distinct machine code and of a family that it has."""
    scope = other.scope
    wanted = RowFilter(
        problem=scope.problem,
        device_kind=scope.device_kind,
        device=scope.device,
        arch=scope.arch,
        method=scope.method,
        predicted=scope.predicted,
    )
    elites: dict[str, Row] = {}
    for row in board.rows(wanted):
        if row.study_id < here.id and row.created_at <= here.created_at and row.family in spaces.families:
            elites.setdefault(row.code_hash or str(row.id), row)
        if len(elites) == PER_SEARCH:
            break
    return list(elites.values())
