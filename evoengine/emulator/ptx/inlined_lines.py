"""Source line of an instruction whose function was inlined from another file.

NVRTC writes ``.loc file line column`` above the instructions of a source line, and for inlined code ``inlined_at file
line column``, the position of the call, whose own ``.loc`` stands further up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_LOC: Final = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*\binlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")


def calling_line(lines: Sequence[str], source: tuple[int, int]) -> tuple[int, int]:
    """Returns the line of the kernel's own file that an instruction belongs to.

    Args:
        lines: Lines of the PTX text up to the instruction.
        source: File number and line of the instruction.

    Returns:
        File number and line: ``source``, or where that belongs to another file than the function into which
        everything was inlined, the call in the file of that function.
    """
    callers: dict[tuple[int, ...], tuple[int, ...]] = {}
    at: tuple[int, ...] = source
    for match in filter(None, map(_LOC.match, lines)):
        position, caller = match.group(1, 2, 3), match.group(4, 5, 6)
        here = tuple(map(int, position))
        at = here if here[:2] == source else at
        if caller[0]:
            callers[here] = tuple(map(int, caller))
        else:
            callers.pop(here, None)
    chain = [at]
    while chain[-1] in callers and callers[chain[-1]] not in chain:
        chain.append(callers[chain[-1]])
    return next((file, line) for file, line, *_ in chain if file == chain[-1][0])
