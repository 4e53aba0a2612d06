"""Line table of PTX: the source line of each PTX line, and the calls through which it was inlined.

NVRTC writes ``.loc file line column`` above the instructions of a source line, and for inlined code ``inlined_at file
line column``, the position of the call. The call's own ``.loc`` stands further up and states where it was inlined in
turn.
"""

from __future__ import annotations

import re
from typing import Final

_LOC: Final = re.compile(
    r"\s*\.loc\s+(\d+\s+\d+\s+\d+)(?:,\s*function_name\s+[^,]+,\s*inlined_at\s+(\d+\s+\d+\s+\d+))?"
)
_Position = tuple[int, int, int]


def source_lines(ptx: str) -> dict[int, tuple[int, ...]]:
    """Maps PTX lines, counted from 1, to source lines.

    Returns:
        For each PTX line after the first ``.loc`` its source line, then the line of the call that it was inlined into,
        and so on outwards.
    """
    callers: dict[_Position, _Position | None] = {}
    found: dict[int, tuple[int, ...]] = {}
    lines: tuple[int, ...] = ()
    for number, text in enumerate(ptx.splitlines(), 1):
        loc = _LOC.match(text)
        if loc:
            here, caller = (_position(part) if part else None for part in loc.groups())
            assert here is not None
            callers[here] = caller
            lines = _chain(here, callers)
        elif lines:
            found[number] = lines
    return found


def _position(text: str) -> _Position:
    file, line, column = map(int, text.split())
    return file, line, column


def _chain(here: _Position, callers: dict[_Position, _Position | None]) -> tuple[int, ...]:
    seen: list[_Position] = []
    at: _Position | None = here
    while at is not None and at not in seen:
        seen.append(at)
        at = callers.get(at)
    return tuple(line for _, line, _ in seen)
