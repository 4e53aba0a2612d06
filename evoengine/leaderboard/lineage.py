"""Lineage of a row: its ancestors within the study."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import Connection, select

from evoengine.leaderboard.codec import check_columns, config_values, decoding, descent_from_json
from evoengine.leaderboard.damage import DamageReport
from evoengine.leaderboard.schema import EVALUATIONS
from evoengine.model import Provenance, Status, Value

_MOST_PARENTS: Final = 1000
"""Maximum number of rows in one generation; SQLite limits the number of variables of a statement."""
_KEY: Final = re.compile("[0-9a-f]{1,64}")


@dataclass(frozen=True)
class Kin:
    """A row as a link in a lineage."""

    id: int
    generation: int
    """Distance from the requested row: 0 is the row itself, 1 a parent; the shortest path counts."""
    status: Status
    median_us: float | None
    family: str
    config: Mapping[str, Value]
    descent: Provenance | None
    """None if the strategy does not report it, or the row is older than version 4."""
    parents: tuple[int, ...]
    """Ids of the parents in the file, the most similar first."""

    @property
    def origin(self) -> str:
        """Move and parents in words; empty if unknown."""
        if self.descent is None:
            return ""
        rows = " and ".join(f"row {parent}" for parent in self.parents)
        return f"{self.descent.move} from {rows}" if rows else self.descent.move


class Configured(Protocol):
    """Object with a config: a row or a link of a lineage."""

    @property
    def family(self) -> str:
        """Family of the config."""

    @property
    def config(self) -> Mapping[str, Value]:
        """Values by tunable."""


def changes(before: Configured, after: Configured) -> Iterator[str]:
    """Yields the differences of two configs, ``BLOCK_N 64 → 128``; between families only the names."""
    if before.family != after.family:
        yield f"family {before.family} → {after.family}"
        return
    for name, value in after.config.items():
        if before.config.get(name) != value:
            yield f"{name} {before.config.get(name, '-')} → {value}"


def lineage(connection: Connection, row_id: int, damage: DamageReport) -> tuple[Kin, ...]:
    """Returns a row and all its ancestors, generation by generation, without damaged ones."""
    columns = EVALUATIONS.c
    study_id = select(columns.study_id).where(columns.id == row_id).scalar_subquery()
    found: dict[str, tuple[int, Mapping[str, Any], Provenance | None]] = {}
    wanted = columns.id == row_id
    for generation in itertools.count():
        rows = connection.execute(
            select(EVALUATIONS).where(columns.study_id == study_id, wanted).order_by(columns.id)
        ).mappings()
        new = {row["config_key"]: (generation, row, descent) for row, descent in damage.sound(_with_descent, rows)}
        found |= new
        parents = {
            key for _, _, descent in new.values() if descent is not None for key in filter(_is_key, descent.parents)
        }
        if not new or not parents - found.keys():
            break
        wanted = columns.config_key.in_(sorted(parents - found.keys())[:_MOST_PARENTS])
    return _linked(list(found.values()))


def _is_key(text: str) -> bool:
    """Whether a text may be the key of a config; a damaged one may be no valid parameter of a query."""
    return _KEY.fullmatch(text) is not None


def _with_descent(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], Provenance | None]:
    with decoding(f"row {row['id']}"):
        check_columns(row)
        Status(row["status"])
        config_values(row["config_json"])
        return row, descent_from_json(row["descent_json"])


def _linked(found: Sequence[tuple[int, Mapping[str, Any], Provenance | None]]) -> tuple[Kin, ...]:
    ids = {row["config_key"]: int(row["id"]) for _, row, _ in found}
    return tuple(
        Kin(
            id=row["id"],
            generation=generation,
            status=Status(row["status"]),
            median_us=row["median_us"],
            family=row["family"],
            config=config_values(row["config_json"]),
            descent=descent,
            parents=tuple(ids[key] for key in (descent.parents if descent is not None else ()) if key in ids),
        )
        for generation, row, descent in found
    )
