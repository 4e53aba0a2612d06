"""References to leaderboard rows as users write them: ``best``, ``rank:N`` or an id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from evoengine.errors import UsageError

_RANK: Final = re.compile(r"rank:([1-9][0-9]{0,8})")
_ID: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class RowReference:
    """One row: by its id, by its rank in a ranking, or the best of a ranking if neither is given."""

    row_id: int | None = None
    rank: int | None = None


def parse_row(text: str) -> RowReference:
    """Parses a reference.

    Raises:
        UsageError: The text is not a reference.
    """
    if text == "best":
        return RowReference()
    rank = _RANK.fullmatch(text)
    if rank is not None:
        return RowReference(rank=int(rank[1]))
    if _ID.fullmatch(text) is None:
        raise UsageError(f"'{text}' is no row: give best, rank:N (such as rank:2), or an ID that 'leaderboard' lists")
    return RowReference(row_id=int(text))
