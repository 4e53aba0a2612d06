"""Mutation of many rows at once, of each value as :meth:`Tunable.mutated <evoengine.space.tunables.Tunable.mutated>`.

Validity is left to the caller: :class:`~evoengine.space.moves.neighbourhood.Neighbourhood`, which makes the offspring
of the ``evolution`` strategy, filters the rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evoengine.space.index_rows import IndexRows
from evoengine.space.tunables import STEP_PROBABILITY

Indices = npt.NDArray[np.int64]


def mutate_rows(
    rows: IndexRows,
    which: Indices,
    axes: Indices,
    last: Indices,
    ordinal: npt.NDArray[np.bool_],
    rng: np.random.Generator,
) -> None:
    """Mutates one tunable in each of some rows, in place. A step beyond the first or last value has no effect.

    Args:
        rows: ``[configs, tunables]`` value indices.
        which: ``[mutations]``: Row of each mutation.
        axes: ``[mutations]``: Tunable of each mutation.
        last: ``[tunables]``: Largest value index of each tunable.
        ordinal: ``[tunables]``: Whether a tunable is ordinal.
        rng: Random generator.
    """
    highest, old = last.take(axes), rows[which, axes].astype(np.int64)
    jump = (old + 1 + rng.integers(np.maximum(highest, 1))) % (highest + 1)
    step = np.minimum(np.maximum(old + 2 * rng.integers(2, size=len(which)) - 1, 0), highest)
    steps = ordinal.take(axes) & (rng.random(len(which)) < STEP_PROBABILITY)
    rows[which, axes] = np.where(steps, step, jump)
