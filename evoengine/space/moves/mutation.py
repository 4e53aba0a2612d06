"""Mutation of tunables: of one value (:func:`mutate_value`), and of entries of many rows (:func:`mutate_rows`).

An ordinal tunable usually moves to the next smaller or larger value and sometimes jumps to any other value. A
categorical or boolean tunable always changes to any other value. Validity is left to the caller:
:class:`~evoengine.space.moves.neighbourhood.Neighbourhood`, which makes the offspring of the ``evolution`` strategy,
filters the rows; :meth:`ValidSpace.mutate <evoengine.space.valid_space.ValidSpace.mutate>`, for strategies of users,
repairs the config.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Value
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.tunables import Ordinal, Tunable

STEP_PROBABILITY: Final = 0.7
"""Probability that an ordinal tunable moves by one step instead of jumping."""

Indices = npt.NDArray[np.int64]


def mutate_value(tunable: Tunable, value: Value, rng: np.random.Generator) -> Value:
    """Returns another value of a tunable, or the same one if it has no other."""
    if isinstance(tunable, Ordinal):
        near = tunable.neighbours(value)
        if near and rng.random() < STEP_PROBABILITY:
            return near[int(rng.integers(len(near)))]
    others = [own for own in tunable.values if own != value]
    return others[int(rng.integers(len(others)))] if others else value


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
