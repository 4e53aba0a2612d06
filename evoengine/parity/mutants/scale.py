"""Mutants with a wrong softmax scale, for families whose factor on scores is ``p.positive_scale``."""

from __future__ import annotations

from typing import Final

from evoengine.parity.mutants.mutant import Mutant, MutantEdit

_FACTOR: Final = "p.positive_scale"
_USUAL: Final = "0.125f * 1.442695f"
"""1/sqrt(64) in base 2: the setups have head_dim 64."""
_IN_FP16: Final = f"fmaxf(unpack_16bit(pack_16bit({_FACTOR}, 0.0f)).x, 1.2e-38f)"
"""Not 0, so that a scale of 0 does not give the mutant away."""
_NEVER_NEGATED: Final = MutantEdit("return p.scale_log2 < 0.0f;", "return false;")


def scale_mutants(prefix: str, setup: str, precise: str, use: str) -> tuple[Mutant, ...]:
    """Creates mutants that are correct for some softmax scales only.

    Args:
        prefix: Start of their names.
        setup: Name of an fp16 setup with head_dim 64.
        precise: Name of such a setup that shows an error of the scale of 0.05 %: one with a log-sum-exp, if possible.
        use: The one place of the template that uses the factor.
    """
    rows = (
        ("scale-of-the-caller-ignored", setup, (_USUAL, _NEVER_NEGATED)),
        ("scale-without-its-sign", setup, (_FACTOR, _NEVER_NEGATED)),
        ("maximum-before-the-scale", setup, ("p.scale_log2", _NEVER_NEGATED)),
        ("scale-in-fp16", precise, (_IN_FP16,)),
    )
    return tuple(
        Mutant(f"{prefix}{name}", "scale", base, (MutantEdit(use, use.replace(_FACTOR, factor)), *others))
        for name, base, (factor, *others) in rows
    )
