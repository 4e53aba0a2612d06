"""Error of the latency model: its expected value by feature, and the covariance of the errors of several configs.

The expected logarithm of measured over predicted time is a function of features (:mod:`.error_features`): a sum of
small regression trees (:mod:`.boosted_trees`), since effects depend on each other. What is left is a linear function
whose weights differ from problem to problem, each with mean 0 and a standard deviation of its own. So configs that
differ only in features of little effect have nearly equal errors, however many such configs there are. The rest is an
error of each config, which is correlated between configs that agree in most tunables.

The coefficients were fitted with ``scripts/measure/fit_forecast_error.py`` on landscapes of an H100 and an H200 and lie
in ``forecast_error.json``, which names them. The correction applies to the architecture that they were recorded on, the
uncertainty to every GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.boosted_trees import BoostedTrees, parse_trees
from evoengine.costmodel.error_features import Array
from evoengine.model import Config, base_family
from evoengine.target import Target

FILE: Final = Path(__file__).with_name("forecast_error.json")
_MOST_CORRECTION: Final = 0.5
"""Largest correction, as a logarithm."""
OWN_ERROR: Final = 0.1
"""Standard deviation of the error of configs whose family has no coefficients, as a logarithm."""
_REACH: Final = 6.0
"""Number of differing tunables over which the agreement of two configs' own errors falls by a factor of e."""
PARTITION_WEIGHT: Final = 3.0
"""Weight of a tunable of the work partition among the differing tunables: configs that differ in such a one alone have
errors that agree less."""


FeatureSource = Callable[[Sequence[str]], Array]
"""Returns features of some configs, ``[configs, features]``."""


@dataclass(frozen=True, eq=False)
class ErrorModel:
    """Distribution of one family's errors over problems."""

    features: tuple[str, ...]
    low: Array
    """Smallest value of each feature in the fit; values outside are clipped."""
    high: Array
    center: Array
    scale: Array
    trees: BoostedTrees
    """The expected error by features."""
    spread: Array
    """Standard deviations of the weights between problems, that of the constant first."""
    own: float
    """Standard deviation of the error that the features do not explain."""

    def design(self, matrix: Array) -> Array:
        """Returns the constant and the scaled features, ``[configs, 1 + features]``."""
        scaled = (np.clip(matrix, self.low, self.high) - self.center) / self.scale
        return np.column_stack([np.ones(len(matrix)), scaled])

    def correction(self, matrix: Array) -> Array:
        """Returns the expected logarithm of measured over predicted time, ``[configs]``."""
        found: Array = np.clip(self.trees(matrix), -_MOST_CORRECTION, _MOST_CORRECTION)
        return found

    def loadings(self, matrix: Array) -> Array:
        """Returns ``[configs, 1 + features]``, whose product with its transpose is the covariance of the errors."""
        found: Array = self.design(matrix) * self.spread
        return found


@dataclass(frozen=True, eq=False)
class ErrorModels:
    """Content of the file of coefficients."""

    arch: str
    """Architecture of the GPU on which the landscapes were recorded."""
    families: Mapping[str, ErrorModel]


@lru_cache(1)
def error_models() -> ErrorModels:
    """Reads the packaged coefficients."""
    return parse_error_models(json.loads(FILE.read_text(encoding="utf-8")))


def parse_error_models(document: Mapping[str, Any]) -> ErrorModels:
    """Reads coefficients from a JSON document as the script of the fit writes it."""
    return ErrorModels(document["arch"], {name: _parse(entry) for name, entry in document["families"].items()})


def _parse(entry: Mapping[str, Any]) -> ErrorModel:
    features = entry["features"]
    low, high, center, scale, spread = np.array([*features.values()], np.float64).reshape(-1, 5).T
    return ErrorModel(
        features=tuple(features),
        low=low,
        high=high,
        center=center,
        scale=scale,
        trees=parse_trees(entry["trees"]),
        spread=np.array([float(entry["constant"]), *spread]),
        own=float(entry["own"]),
    )


def error_model(family: str) -> ErrorModel | None:
    """Returns the distribution of the errors of a family or of a variant of it; None if none was fitted."""
    return error_models().families.get(base_family(family))


def is_corrected(family: str, target: Target) -> bool:
    """Returns whether predictions of a family or of a variant of it are corrected for a GPU."""
    return error_model(family) is not None and target.arch == error_models().arch


def correction_factor(family: str, features: FeatureSource, target: Target) -> Array:
    """Returns the factor on predicted times, ``[configs]``: 1 for families and architectures without coefficients.

    Args:
        family: Family of the configs.
        features: Computes features of them by their names.
        target: GPU.
    """
    model = error_model(family)
    if model is None or not is_corrected(family, target):
        return np.ones(1)
    factor: Array = np.exp(model.correction(features(model.features)))
    return factor


def error_loadings(family: str, features: FeatureSource) -> Array:
    """Returns the loadings of the errors of configs of one family, ``[configs, factors]``.

    The arguments are those of :func:`correction_factor`.
    """
    model = error_model(family)
    return np.zeros((1, 0)) if model is None else model.loadings(features(model.features))


def own_error(family: str) -> float:
    """Returns the standard deviation of the error of a config's own."""
    model = error_model(family)
    return OWN_ERROR if model is None else model.own


def own_covariance(configs: Sequence[Config], partition: Sequence[str] = (), deviation: float = OWN_ERROR) -> Array:
    """Returns the covariance of the own errors of configs of one family, ``[configs, configs]``.

    Args:
        configs: Configs of one family.
        partition: Tunables that determine how a config partitions the work.
        deviation: Standard deviation.
    """
    values = [config.as_dict() for config in configs]
    apart: Array = np.zeros((len(configs), len(configs)))
    for name in dict.fromkeys(name for one in values for name in one):
        codes: dict[Any, int] = {}
        column: npt.NDArray[np.int64] = np.array(
            [codes.setdefault((type(one.get(name)), one.get(name)), len(codes)) for one in values]
        )
        apart += (PARTITION_WEIGHT if name in partition else 1.0) * (column[:, None] != column[None, :])
    covariance: Array = deviation**2 * np.exp(-apart / _REACH)
    return covariance
