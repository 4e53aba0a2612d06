"""Gradient-boosted regression trees: the sum of many small trees, each of which splits at one feature per node.

Source: Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", Annals of Statistics 29 (2001). A fit is
made by scikit-learn (``scripts/measure/fit_forecast_error.py``); this module only evaluates it, for many rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Complete binary trees of equal depth, level by level: node ``n`` has the children ``2n+1`` and ``2n+2``.

    A branch that ends early is continued by nodes whose descendants have all the same value.
    """

    start: float
    """Value to which those of the trees are added."""
    feature: npt.NDArray[np.int64]
    """Column that each inner node compares, ``[trees, 2**depth - 1]``."""
    threshold: Array
    """A row with at most this value goes to the first child, ``[trees, 2**depth - 1]``."""
    value: Array
    """Values of the leaves, ``[trees, 2**depth]``."""

    def __call__(self, matrix: Array) -> Array:
        """Evaluates the sum of all trees, ``[rows]``, for ``[rows, features]``; a row's result depends on it alone."""
        trees = np.arange(len(self.feature))
        node = np.zeros((len(matrix), len(trees)), np.int64)
        for _ in range(self.value.shape[1].bit_length() - 1):
            compared = np.take_along_axis(matrix, self.feature[trees, node], axis=1)
            node = 2 * node + 1 + (compared > self.threshold[trees, node])
        found: Array = self.start + self.value[trees, node - self.feature.shape[1]].sum(axis=1)
        return found


def parse_trees(document: Mapping[str, Any]) -> BoostedTrees:
    """Reads trees from a JSON document with the names of the fields."""
    return BoostedTrees(
        float(document["start"]),
        np.array(document["feature"], np.int64),
        np.array(document["threshold"], np.float64),
        np.array(document["value"], np.float64),
    )
