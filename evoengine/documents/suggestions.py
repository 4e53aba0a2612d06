"""Suggestions for misspelled names in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ``: did you mean THREADS?`` for the known name that is closest to an unknown one; empty if none is close.

    Case does not count: names of search spaces are in upper case and those of problems in lower case.
    """
    by_folded = {one.casefold(): one for one in sorted(known, reverse=True)}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f": did you mean {by_folded[close[0]]}?" if close else ""
