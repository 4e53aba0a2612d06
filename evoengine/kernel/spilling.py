"""How much a kernel may spill; apart from the other limits, since the command line asks for it before all else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from evoengine.kernel.records import Binary

SPILL_LIMIT_BYTES: Final = 2048
"""Spilled bytes per thread, stores and loads, above which a kernel is not worth running: it puts more than the whole
register file of a thread (255 registers) into memory and takes it back. Of random valid configs the worst had a ninth
of it (``scripts/measure/sample_resources.py``), so this is a guard for spaces whose constraints forget registers."""


def spill_reason(binary: Binary, limit_bytes: int) -> str | None:
    """Says which entry of a binary spills too much; None when none does, and for a limit of 0, which is none.

    This is a rule, not a limit of the device: such a kernel runs, and is slow.
    """
    entries = (("", binary.resources), *((f"{entry}: ", needs) for entry, needs in binary.further))
    for name, needs in entries:
        if 0 < limit_bytes < needs.spill_bytes:
            return f"{name}{needs.spill_bytes} bytes spilled per thread, more than the {limit_bytes} of --spill-limit"
    return None
