"""Edits that state a new text of a region by the fewest lines that occur once."""

from __future__ import annotations

from collections.abc import Sequence

from evoengine.model import Edit, Region


def edit_of(region: Region, new_text: str, regions: Sequence[Region]) -> Edit | None:
    """Returns the edit that turns a region's text into another.

    Args:
        region: Region to change.
        new_text: Its new text.
        regions: All regions that are known of the file, among which the search text must be unique.

    Returns:
        None if the texts are equal, or the region's whole text is not unique.
    """
    old, new = region.text.splitlines(keepends=True), new_text.splitlines(keepends=True)
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    if old == new:
        return None
    known = "".join(one.text for one in regions if one.file == region.file)
    while True:
        search = "".join(old[head : len(old) - tail])
        if search.strip() and known.count(search) == 1:
            return Edit(region.file, search, "".join(new[head : len(new) - tail]))
        if head == tail == 0:
            return None
        head, tail = max(head - 1, 0), max(tail - 1, 0)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Counts the equal lines at the beginning of both."""
    return next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
