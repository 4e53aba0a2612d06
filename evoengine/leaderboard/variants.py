"""Variants of families: their patches, parents, and the attempts of the evolutions that made them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.codec import check_time, decoded, decoding
from evoengine.leaderboard.damage import DamageReport
from evoengine.leaderboard.records import Scope, utc_now
from evoengine.leaderboard.schema import ATTEMPTS, VARIANT_PARENTS, VARIANTS
from evoengine.model import Patch, Value, Variant

_TEXTS: Final = ("family", "operator", "origin", "name")
_MOST_COUNTED: Final = 2.0**63
"""Bound of a counter of a kernel."""


@dataclass(frozen=True)
class StoredVariant:
    """A variant as the leaderboard stores it."""

    variant: Variant
    operator: str
    """Operator that made it first."""
    origin: str
    """Identifier of the transcript that proposed it; empty without one."""
    parents: tuple[str, ...]
    """Family names of its parents."""
    created_at: datetime

    @property
    def name(self) -> str:
        """Family name of the variant."""
        return self.variant.name


@dataclass(frozen=True)
class Attempt:
    """One proposal of an evolution and its result."""

    operator: str
    parent: str
    """Family name of the parent."""
    island: int
    stage: str
    """``tuned`` for a variant that was searched, otherwise the stage that rejected the proposal."""
    summary: str = ""
    reason: str = ""
    """Why it was rejected; empty for a variant that was searched."""
    variant: str = ""
    """Family name of the variant; empty where the patch did not apply."""
    parent_us: float | None = None
    """Best time of the parent when the proposal was made."""
    best_us: float | None = None
    """Best time of the variant's tuned configs."""
    row_id: int | None = None
    """Row of the best time."""
    features: Mapping[str, float] | None = None
    """Counters of the best kernel, from which the archive cell follows."""
    text_hash: str = ""
    """Template hash of the variant."""
    code_hash: str = ""
    """Machine code of its checked config."""
    candidates: int = 0
    """Candidates of the ordinary search that were evaluated."""
    seconds: float = 0.0
    origin: str = ""


class VariantStore:
    """Variants and attempts of a leaderboard.

    Args:
        read: Opens a transaction for reading.
        write: Opens a transaction for writing.
        damage: Receives damaged rows, which are left out.
    """

    def __init__(
        self,
        read: Callable[[], AbstractContextManager[Connection]],
        write: Callable[[], AbstractContextManager[Connection]],
        damage: DamageReport,
    ) -> None:
        self._read = read
        self._write = write
        self._damage = damage

    def add(self, variant: Variant, operator: str, parents: Sequence[str], origin: str = "") -> None:
        """Stores a variant and its parents; one that is stored already stays unchanged."""
        values = {
            "name": variant.name,
            "family": variant.family,
            "patch_json": json.dumps(asdict(variant.patch)),
            "operator": operator,
            "origin": origin,
            "created_at": utc_now(),
        }
        links = [{"variant": variant.name, "number": number, "parent": name} for number, name in enumerate(parents)]
        with self._write() as connection:
            if connection.execute(insert(VARIANTS).values(values).on_conflict_do_nothing()).rowcount and links:
                connection.execute(insert(VARIANT_PARENTS), links)

    def all(self) -> list[StoredVariant]:
        """Returns all variants, oldest first, without damaged ones."""
        with self._read() as connection:
            return _stored(connection, self._damage)

    def find(self, name: str) -> StoredVariant | None:
        """Returns one variant; None if the leaderboard does not have it or it is damaged."""
        with self._read() as connection:
            return next(iter(_stored(connection, self._damage, name)), None)

    def add_attempt(self, scope: Scope, attempt: Attempt) -> None:
        """Stores an attempt of an evolution for one ranking."""
        values = asdict(attempt)
        features = values.pop("features")
        values |= {
            "scope": scope.key,
            "variant": attempt.variant or None,
            "features_json": None if features is None else json.dumps(dict(features), sort_keys=True),
            "created_at": utc_now(),
        }
        with self._write() as connection:
            connection.execute(insert(ATTEMPTS).values(values))

    def attempts(self, scope: Scope | None = None) -> list[Attempt]:
        """Returns the attempts of a ranking, or of all, oldest first, without damaged ones."""
        query = select(ATTEMPTS).order_by(ATTEMPTS.c.id)
        if scope is not None:
            query = query.where(ATTEMPTS.c.scope == scope.key)
        with self._read() as connection:
            return list(self._damage.sound(_attempt, connection.execute(query).mappings()))


def variant_of(connection: Connection, name: str, damage: DamageReport) -> Variant | None:
    """Returns a variant by its name; None if the leaderboard does not have it or it is damaged."""
    return next((one.variant for one in _stored(connection, damage, name)), None)


def _stored(connection: Connection, damage: DamageReport, name: str | None = None) -> list[StoredVariant]:
    """Returns all variants, or the one of a name, oldest first, without damaged ones."""
    links = select(VARIANT_PARENTS).order_by(VARIANT_PARENTS.c.number)
    query = select(VARIANTS).order_by(VARIANTS.c.created_at, VARIANTS.c.name)
    if name is not None:
        links, query = links.where(VARIANT_PARENTS.c.variant == name), query.where(VARIANTS.c.name == name)
    parents: dict[str, list[str]] = {}
    for link in connection.execute(links):
        parents.setdefault(link.variant, []).append(link.parent)
    return list(damage.sound(partial(_variant, parents), connection.execute(query).mappings()))


def _variant(parents: Mapping[str, Sequence[str]], row: Mapping[str, Any]) -> StoredVariant:
    patch = decoded(Patch, row["patch_json"], f"variant {row['name']}")
    with decoding(f"variant {row['name']}"):
        check_time(row, "created_at")
        family, operator, origin, name = (msgspec.convert(row[key], str) for key in _TEXTS)
        variant = Variant(family, patch)
        if variant.name != name:
            raise ValueError("the patch has another content hash")
        ancestors = msgspec.convert(parents.get(name, ()), tuple[str, ...])
        return StoredVariant(variant, operator, origin, ancestors, row["created_at"])


def _attempt(row: Mapping[str, Any]) -> Attempt:
    with decoding(f"attempt {row['id']}"):
        values: dict[str, Value | Mapping[str, float] | None] = {
            name: row[name] for name in Attempt.__dataclass_fields__ if name not in ("features", "variant")
        }
        features = row["features_json"]
        if features is not None:
            values["features"] = decoded(dict[str, float], features, f"attempt {row['id']}: features_json")
        attempt = msgspec.convert(values | {"variant": row["variant"] or ""}, Attempt)
        for name, time_us in (("parent_us", attempt.parent_us), ("best_us", attempt.best_us)):
            if time_us is not None and not 0 < time_us < math.inf:
                raise ValueError(f"{name}: is not a positive finite number")
        for name, count in (attempt.features or {}).items():
            if not 0 <= count < _MOST_COUNTED:
                raise ValueError(f"features_json: {name}: is not a number from 0 to 2^63")
        return attempt
