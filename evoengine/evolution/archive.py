"""Archive of an evolution: islands of MAP-Elites grids over emulator counters, rebuilt from the stored attempts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.evolution.counters import cell_of, is_near
from evoengine.evolution.records import VariantSummary
from evoengine.leaderboard.variants import Attempt
from evoengine.model import Variant

TUNED: Final = "tuned"
"""Stage of an attempt whose variant was searched."""
_MIGRATION: Final = 0.1
"""Probability that a parent comes from any island."""
_EXPLORATION: Final = 0.5
"""Probability that a parent is a random cell's, instead of one drawn by rank."""
_BEST_PICKS: Final = 3
_DIVERSE_PICKS: Final = 2


@dataclass(frozen=True)
class Member:
    """A searched variant, or the unchanged family."""

    name: str
    island: int
    time_us: float
    row_id: int
    cell: tuple[int, ...]
    features: Mapping[str, float] | None
    operator: str
    summary: str
    text_hash: str
    code_hash: str


@dataclass(frozen=True)
class Archive:
    """Members of all islands. The unchanged family competes in each, and stays while it is the fastest of its cell."""

    members: tuple[Member, ...]
    """The fastest of each island's cells."""
    seen: tuple[Member, ...]
    """All searched variants."""
    tried: frozenset[str]
    """Names of the variants of all attempts, also of those that were rejected."""
    islands: int
    family: str
    """Unchanged family."""

    @classmethod
    def of(cls, attempts: Iterable[Attempt], family: str, islands: int) -> Archive:
        """Builds the archive of the attempts of one family.

        Args:
            attempts: Attempts, oldest first; those without a time are left out.
            family: Unchanged family.
            islands: Number of islands.
        """
        grid: dict[tuple[int, tuple[int, ...]], Member] = {}
        seen: list[Member] = []
        tried: set[str] = set()
        for attempt in attempts:
            tried.add(attempt.variant)
            if attempt.stage != TUNED or attempt.best_us is None or attempt.row_id is None:
                continue
            member = _member(attempt)
            repeated = any(is_near(member.features, one.features) and one.time_us <= member.time_us for one in seen)
            seen.append(member)
            if repeated and member.name != family:
                continue
            for island in range(islands) if member.name == family else (member.island % islands,):
                place = island, member.cell
                if place not in grid or member.time_us < grid[place].time_us:
                    grid[place] = member
        return cls(tuple(grid.values()), tuple(seen), frozenset(tried), islands, family)

    def on(self, island: int) -> tuple[Member, ...]:
        """Returns the members that an island may draw parents from, fastest first."""
        own = {one.name: one for one in self.members if one.name == self.family or one.island % self.islands == island}
        return tuple(sorted(own.values(), key=lambda one: (one.time_us, one.name)))

    @property
    def ranked(self) -> tuple[Member, ...]:
        """All members, fastest first."""
        found = {one.name: one for one in self.members}
        return tuple(sorted(found.values(), key=lambda one: (one.time_us, one.name)))

    def parent(self, island: int, rng: random.Random) -> Member:
        """Draws a parent: half of the time uniformly among cells, otherwise by rank."""
        pool = self.ranked if rng.random() < _MIGRATION else self.on(island) or self.ranked
        if rng.random() < _EXPLORATION:
            cells = sorted({one.cell for one in pool})
            cell = rng.choice(cells)
            return next(one for one in pool if one.cell == cell)
        weights = [1 / (rank + 1) for rank in range(len(pool))]
        return rng.choices(pool, weights)[0]

    def picks(self, parent: str, rng: random.Random) -> tuple[Member, ...]:
        """Returns up to three fastest members and up to two others of other cells, without the parent."""
        others = [one for one in self.ranked if one.name != parent]
        best, rest = others[:_BEST_PICKS], others[_BEST_PICKS:]
        known = {one.cell for one in best}
        diverse = [one for one in rest if one.cell not in known] or rest
        return (*best, *rng.sample(diverse, min(_DIVERSE_PICKS, len(diverse))))

    def same_text(self, text_hash: str) -> str:
        """Returns the member with this template hash; empty for none."""
        return next((one.name for one in self.seen if one.text_hash == text_hash), "")

    def same_code(self, code_hash: str) -> str:
        """Returns the member whose checked config has this machine code; empty for none."""
        return next((one.name for one in self.seen if code_hash and one.code_hash == code_hash), "")


def summaries(members: Sequence[Member], variants: Mapping[str, Variant]) -> tuple[VariantSummary, ...]:
    """Returns what a proposer sees of members."""
    return tuple(
        VariantSummary(
            one.name,
            one.summary,
            one.operator,
            one.time_us,
            variants[one.name].patch if one.name in variants else None,
            one.cell,
        )
        for one in members
    )


def _member(attempt: Attempt) -> Member:
    assert attempt.best_us is not None, "only searched variants are members"
    assert attempt.row_id is not None, "a time comes from a row"
    return Member(
        name=attempt.variant,
        island=attempt.island,
        time_us=attempt.best_us,
        row_id=attempt.row_id,
        cell=cell_of(attempt.features),
        features=attempt.features,
        operator=attempt.operator,
        summary=attempt.summary,
        text_hash=attempt.text_hash,
        code_hash=attempt.code_hash,
    )
