"""Mutants of the lazy rescale, which several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.parity.mutants.mutant import Mutant, MutantEdit

_ABOVE: Final = "above |= !(highest[atom][half] <= limits.highest[atom][half]);"
_VOTE: Final = "__any_sync(0xffffffffu, above)"
_FACTOR: Final = "raises ? exp2_approx((before - now) * scale) : 1.0f;"
_FOLLOW: Final = "        }\n    limits.follow(acc, scale);\n    return raised;"

_EDITS: Final[Mapping[str, MutantEdit]] = {
    "never-raised": MutantEdit("TOLERATED = 8.0f", "TOLERATED = 1e30f"),
    "raised-by-the-first-row": MutantEdit(_ABOVE, f"if (half == 0) {_ABOVE}"),
    "raised-by-the-second-row": MutantEdit(_ABOVE, f"if (half == 1) {_ABOVE}"),
    "raised-by-one-lane": MutantEdit(_VOTE, _VOTE.replace("any_sync(0xffffffffu, above", "shfl_sync(~0u, above, 0")),
    "raised-to-the-maximum-of-a-lane": MutantEdit("now = quad_max(highest[atom][half]);", "now = highest[atom][half];"),
    "raised-but-not-rescaled": MutantEdit(_FACTOR, "1.0f;"),
    "sum-not-rescaled-with-the-output": MutantEdit("acc.sum[atom][2 * half] *= raised.factor[atom][half];", ""),
    "output-not-rescaled-with-the-sum": MutantEdit("acc.o[atom][tile][i] *= raised.factor[atom][i / 2];", ";"),
    "limits-of-the-first-maxima": MutantEdit(_FOLLOW, _FOLLOW.replace("limits.follow(acc, scale);", "")),
}

_INTEGERS: Final[Mapping[str, MutantEdit]] = {
    "maxima-below-zero-compared-as-integers": MutantEdit("MAXIMA_OF_THREE && !limits.below_zero", "MAXIMA_OF_THREE"),
    "limits-below-zero-of-one-lane": MutantEdit("__any_sync(0xffffffffu, below)", "__shfl_sync(~0u, below, 0)"),
    "maxima-of-every-other-tile": MutantEdit(
        "__int_as_float(max(highest[0], highest[1]))", "__int_as_float(highest[0])"
    ),
}


def rescale_mutants(prefix: str, setup: str) -> tuple[Mutant, ...]:
    """Creates the mutants that every family with a lazy rescale can have."""
    return _of(_EDITS, prefix, setup)


def integer_maxima_mutants(prefix: str, setup: str) -> tuple[Mutant, ...]:
    """Creates the mutants of maxima that are compared as integers, where the limits allow it."""
    return _of(_INTEGERS, prefix, setup)


def _of(edits: Mapping[str, MutantEdit], prefix: str, setup: str) -> tuple[Mutant, ...]:
    return tuple(Mutant(prefix + name, "maximum", setup, (edit,)) for name, edit in edits.items())
