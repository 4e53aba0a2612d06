"""Edits for mutants in which every element is nearly right: factors on the softmax scale."""

from __future__ import annotations

from typing import Final

from evoengine.parity.mutants.mutant import MutantEdit

FACTOR: Final = "p.positive_scale"
ONE_MORE_DIM: Final = "0.998053f"
"""sqrt(256/257): the scale of a kernel that divides by sqrt(head_dim + 1)."""
IN_BF16: Final = f"__uint_as_float((__float_as_uint({FACTOR}) + 0x8000u) & 0xffff0000u)"


def scaled_by(use: str, factor: str) -> MutantEdit:
    """Returns the edit that multiplies the softmax scale where the template uses it."""
    return MutantEdit(use, use.replace(FACTOR, f"{FACTOR} * {factor}"))
