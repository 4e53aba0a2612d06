"""Which GPU runs which machine code."""

from __future__ import annotations

import re

from evoengine.errors import UsageError


def compute_capability(arch: str) -> tuple[int, int]:
    """``sm_89`` is (8, 9), ``sm_90a`` is (9, 0), ``sm_120`` is (12, 0).

    Raises:
        UsageError: not an architecture.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if match is None:
        raise UsageError(f"'{arch}' is not an architecture: give one like sm_89")
    return int(match.group(1)), int(match.group(2))


def runs_machine_code(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a GPU of a compute capability runs machine code of an architecture.

    It runs on its own major version from its minor on; ``sm_90a`` only where it is exact.
    """
    major, minor = compute_capability(arch)
    exact = arch[-1].isalpha()
    return major == capability[0] and (minor == capability[1] if exact else minor <= capability[1])
