"""Encoding of configs as the 0/1 features of the surrogate model.

Ordinal tunables are encoded as thermometers (one feature per value: "above this value"), categorical ones one-hot.
Pairs of ordinal tunables have further thermometers over the logarithm of their product, because many costs depend on a
product such as the threads of a block or the bytes of a tile. With 0/1 features, the steps between two configs and
their inner product follow from one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.space.index_rows import IndexRows
from evoengine.space.tunables import Ordinal, Tunable

Features = npt.NDArray[np.float32]
"""``[configs, features]``, zeros and ones."""
Matrix = npt.NDArray[np.floating[Any]]

PAIRED: Final = 6
"""Maximum number of tunables that form pairs, those with the most values: 15 pairs."""
LEVELS: Final = 6
"""Maximum number of thresholds of a pair's product."""
_PAIR_SCALE: Final = 0.3
"""Scale of a pair's thermometer relative to that of a tunable; there are many pairs."""
_DIGITS: Final = 6
"""Digits to which logarithms of products are compared."""


class Encoding:
    """Encodes rows of value indices as 0/1 features.

    Args:
        tunables: Tunables in the order of the rows' columns.
    """

    def __init__(self, tunables: Sequence[Tunable]) -> None:
        own = [feature for index, tunable in enumerate(tunables) for feature in _features(index, tunable)]
        own.sort(key=lambda feature: not feature[1])
        self._pairs = _pair_tables(tunables)
        shared = [table.levels.shape[1] for table in self._pairs for _ in range(table.levels.shape[1])]
        self._axes = np.array([index for index, _, _, _ in own], np.int64)
        self._steps = sum(ordinal for _, ordinal, _, _ in own)
        self._values = np.array([value for _, _, value, _ in own], np.uint8)
        self.owner = np.concatenate([self._axes, np.full(len(shared), len(tunables), np.int64)])
        """Index of each feature's weight, ``[features]``: that of its tunable; all pairs share the last weight."""
        self.scale = np.array([scale for _, _, _, scale in own] + [_PAIR_SCALE / math.sqrt(count) for count in shared])
        """Distance between two configs that differ in one feature, ``[features]``."""
        self.weights = len(tunables) + bool(self._pairs)
        """Number of weights."""

    def features(self, rows: IndexRows) -> Features:
        """Encodes rows ``[configs, tunables]`` as ``[configs, features]``."""
        owned, own = rows[:, self._axes], np.empty((len(rows), len(self._axes)), np.float32)
        np.greater(owned[:, : self._steps], self._values[: self._steps], out=own[:, : self._steps])
        np.equal(owned[:, self._steps :], self._values[self._steps :], out=own[:, self._steps :])
        return np.concatenate([own, *(table.features(rows) for table in self._pairs)], axis=1)

    def steps(self, first: Features, second: Features) -> Features:
        """Sums of the scales of the features that differ, ``[first, second]``."""
        scale = self.scale.astype(np.float32)
        weighted = first * scale
        return np.asarray(weighted.sum(axis=1)[:, None] + times(second, scale) - 2 * weighted @ second.T)


@dataclass(frozen=True)
class _PairTable:
    """Thermometer over the product of two tunables, as a look-up table."""

    first: int
    second: int
    width: int
    """Number of values of the second tunable."""
    levels: Features
    """``[first value * width + second value, thresholds]``."""

    def features(self, rows: IndexRows) -> Features:
        return np.asarray(self.levels[rows[:, self.first].astype(np.int64) * self.width + rows[:, self.second]])


def _features(index: int, tunable: Tunable) -> list[tuple[int, bool, int, float]]:
    """Features of a tunable: its index, whether the feature means "above this value" or "this value", value, scale."""
    count = len(tunable.values)
    if isinstance(tunable, Ordinal):
        return [(index, True, value, 1 / math.sqrt(count - 1)) for value in range(count - 1)]
    return [(index, False, value, 0.5) for value in range(count)]


def _pair_tables(tunables: Sequence[Tunable]) -> list[_PairTable]:
    """Tables of all pairs of the ordinal tunables with the most values."""
    logs = {index: found for index, tunable in enumerate(tunables) if (found := _logarithms(tunable)) is not None}
    paired = sorted(sorted(logs, key=lambda index: -len(logs[index]))[:PAIRED])
    tables = []
    for first, second in combinations(paired, 2):
        product = np.round(logs[first][:, None] + logs[second], _DIGITS).ravel()
        distinct = np.unique(product)
        between = (distinct[1:] + distinct[:-1]) / 2
        if len(between) > LEVELS:
            between = between[np.linspace(0, len(between) - 1, LEVELS).round().astype(int)]
        levels = (product[:, None] > between).astype(np.float32)
        tables.append(_PairTable(first, second, len(logs[second]), levels))
    return tables


def _logarithms(tunable: Tunable) -> npt.NDArray[np.float64] | None:
    """Binary logarithms of an ordinal tunable's values, 0 as half of the least other; None where there are none."""
    values = [float(value) for value in tunable.values if not isinstance(value, str)]
    positive = [value for value in values if value > 0]
    if not isinstance(tunable, Ordinal) or len(values) < 2 or min(values) < 0 or not positive:
        return None
    least = min(positive) / 2
    return np.log2([value or least for value in values])


def times(matrix: Matrix, vector: Matrix) -> Matrix:
    """Multiplies a matrix ``[n, k]`` by a vector ``[k]``.

    In some processes OpenBLAS sets the flag of an invalid operation where a float32 matrix is multiplied by a short
    vector, although all operands are finite and the product is right. NumPy would warn of it.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(matrix @ vector)
