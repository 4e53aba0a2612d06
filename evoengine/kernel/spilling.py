"""Limit on register spills, in a module without heavy imports: the command line needs the default limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from evoengine.kernel.records import Binary

SPILL_LIMIT_BYTES: Final = 2048
"""Default limit of spilled bytes per thread, stores plus loads. A kernel above it moves more than all registers of a
thread (255) to memory and back. Valid configs of the shipped spaces stay far below it
(``scripts/measure/sample_configs.py``); the limit protects searches of spaces whose constraints ignore registers."""


def spill_reason(binary: Binary, limit_bytes: int) -> str | None:
    """Returns which entry of a binary spills more than a limit; None if none does.

    This is a rule of the search, not a limit of the device: such a kernel runs, but slowly.

    Args:
        binary: Compiled kernel.
        limit_bytes: Limit in bytes per thread; 0 for none.
    """
    entries = (("", binary.resources), *((f"{entry}: ", needs) for entry, needs in binary.further))
    for name, needs in entries:
        if 0 < limit_bytes < needs.spill_bytes:
            return f"{name}{needs.spill_bytes} bytes spilled per thread, more than the {limit_bytes} of --spill-limit"
    return None
