"""Whose child a row is: its ancestors, as far back as the study remembers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection, select

from evoengine.leaderboard.codec import config_values, descent_from_json
from evoengine.leaderboard.schema import EVALUATIONS
from evoengine.model import Provenance, Status, Value


@dataclass(frozen=True)
class Kin:
    """A row as a link in a lineage."""

    id: int
    generation: int
    """0 is the row that was asked for, 1 its parents, and so on; of two ways to a row the shorter one counts."""
    status: Status
    median_us: float | None
    family: str
    config: Mapping[str, Value]
    descent: Provenance | None
    """None where nothing is known: the strategy does not say, or the file was older than that."""
    parents: tuple[int, ...]
    """Ids of the parents that the file holds, what it resembles most first."""

    @property
    def origin(self) -> str:
        """Move and parents in words; empty where nothing is known."""
        if self.descent is None:
            return ""
        rows = " and ".join(f"row {parent}" for parent in self.parents)
        return f"{self.descent.move} from {rows}" if rows else self.descent.move


class Configured(Protocol):
    """What has a config: a row, a link of a lineage."""

    @property
    def family(self) -> str:
        """Whose tunables the config gives values."""

    @property
    def config(self) -> Mapping[str, Value]:
        """The values."""


def changes(before: Configured, after: Configured) -> Iterator[str]:
    """What a config has otherwise than another: ``BLOCK_N 64 → 128``; of another family only its name."""
    if before.family != after.family:
        yield f"family {before.family} → {after.family}"
        return
    for name, value in after.config.items():
        if before.config.get(name) != value:
            yield f"{name} {before.config.get(name, '-')} → {value}"


def lineage(connection: Connection, row_id: int) -> tuple[Kin, ...]:
    """A row and all its ancestors, the row first, generation by generation."""
    columns = EVALUATIONS.c
    study_id = select(columns.study_id).where(columns.id == row_id).scalar_subquery()
    found: dict[str, tuple[int, Mapping[str, Any], Provenance | None]] = {}
    wanted = columns.id == row_id
    while True:
        rows = connection.execute(
            select(EVALUATIONS).where(columns.study_id == study_id, wanted).order_by(columns.id)
        ).mappings()
        generation = max((one[0] for one in found.values()), default=-1) + 1
        new = {row["config_key"]: (generation, row, descent_from_json(row["descent_json"])) for row in rows}
        found |= new
        parents = {key for _, _, descent in new.values() if descent is not None for key in descent.parents}
        if not parents - found.keys():
            return _linked(list(found.values()))
        wanted = columns.config_key.in_(sorted(parents - found.keys()))


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
