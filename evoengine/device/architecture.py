"""Compute capabilities, and which machine code a GPU runs."""

from __future__ import annotations

import re

from evoengine.errors import UsageError


def compute_capability(arch: str) -> tuple[int, int]:
    """Returns the compute capability: (8, 9) for ``sm_89``, (9, 0) for ``sm_90a``, (12, 0) for ``sm_120``.

    Raises:
        UsageError: The text is not an architecture.
    """
    match = re.fullmatch(r"sm_([0-9]{1,3})([0-9])[af]?", arch)
    if match is None:
        raise UsageError(f"'{arch}' is not an architecture: give one like sm_89")
    return int(match.group(1)), int(match.group(2))


def runs_machine_code(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a GPU of a compute capability runs machine code of an architecture.

    Machine code runs on the same major version with an equal or higher minor version; ``sm_90a`` needs an exact match.
    """
    major, minor = compute_capability(arch)
    exact = arch[-1].isalpha()
    return major == capability[0] and (minor == capability[1] if exact else minor <= capability[1])
