"""Features of kernels by which the error of the latency model is explained: tunables, launch and problem.

A feature is named by a text: a tunable (``STAGES_K``, as the binary logarithm of one more than its value, or 0 and 1
for a switch), one of its values (``CACHE_OP=ca``, 0 or 1), or a property of the launch or of the problem in lower case
(:func:`launch_columns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.kernel.resources import WARP
from evoengine.model import Problem
from evoengine.target import Target

NEEDED: Final = frozenset(("BLOCK_M", "BLOCK_N", "THREADS", "TILE_CTAS", "SPLITS"))
"""Names of tunables and derived values that the properties of a launch follow from."""
_SECTOR_BYTES: Final = 32
"""Smallest part of a line that L2 delivers."""
Array = npt.NDArray[np.float64]


def launch_columns(
    names: Mapping[str, Any],
    problem: Problem,
    target: Target,
    resident: npt.ArrayLike,
    spilled: npt.ArrayLike,
    busy_us: npt.ArrayLike,
) -> dict[str, Array]:
    """Computes the properties of launches and of their problem, each ``[configs]``.

    Args:
        names: Tunables and derived values with :data:`NEEDED`, scalars or ``[configs]``.
        problem: Problem to be computed.
        target: GPU.
        resident: CTAs that fit on an SM, a scalar or ``[configs]``.
        spilled: Spilled registers per thread, a scalar or ``[configs]``.
        busy_us: Predicted time if all bytes were in L2, a scalar or ``[configs]``.

    Returns:
        ``resident``, ``together`` and ``warps`` are binary logarithms: CTAs that fit on an SM, CTAs and warps that run
        together on the busiest one. ``fill`` is the mean over the largest number of CTAs of an SM, ``wave_fill`` the
        share of the slots of all waves that the busiest SM uses. ``partial_rows`` and ``partial_keys`` are the shares
        of the computed rows and keys that do not exist. ``spills`` is the binary logarithm of one more, ``busy`` that
        of the predicted time. ``first_tile`` is the share of a CTA's key tiles that is the first one, before which
        nothing is in flight. ``head_dim`` is a binary logarithm. The others are 0 or 1: ``causal``, ``grouped``
        (several heads share a K/V head), ``decode`` (one row of Q), and ``split_rows``, where rows end within a sector
        of L2, which two copies then read.
    """
    block_m, block_n, threads, tiles, splits = (
        _column(names[name]) for name in ("BLOCK_M", "BLOCK_N", "THREADS", "TILE_CTAS", "SPLITS")
    )
    slots = np.maximum(1.0, _column(resident))
    pieces = tiles * splits
    share = np.ceil(pieces / target.sms)
    together = np.minimum(slots, share)
    key_tiles = np.ceil(problem.seq_kv / block_n)
    count = max(map(len, (slots, pieces, block_n)))
    return _problem_columns(problem, count) | {
        "resident": np.log2(slots),
        "together": np.log2(together),
        "warps": np.log2(together * threads / WARP),
        "fill": pieces / target.sms / share,
        "wave_fill": share / (np.ceil(share / slots) * slots),
        "partial_rows": 1 - problem.batch * problem.heads * problem.seq_q / (tiles * block_m),
        "partial_keys": 1 - problem.seq_kv / (key_tiles * block_n),
        "first_tile": 1 / np.maximum(1.0, key_tiles / splits),
        "spills": np.log2(1 + _column(spilled)),
        "busy": np.log2(_column(busy_us)),
    }


def _column(values: npt.ArrayLike) -> Array:
    """Converts a scalar or ``[configs]`` to an array of one dimension."""
    return np.atleast_1d(np.asarray(values, np.float64))


def _problem_columns(problem: Problem, count: int) -> dict[str, Array]:
    facts = {
        "head_dim": np.log2(problem.head_dim),
        "causal": problem.causal,
        "grouped": problem.kv_heads != problem.heads,
        "decode": problem.seq_q == 1,
        "split_rows": problem.head_dim * problem.dtype.bytes % _SECTOR_BYTES != 0,
    }
    return {name: np.full(count, float(fact)) for name, fact in facts.items()}


def feature_matrix(features: Sequence[str], names: Mapping[str, Any], launch: Mapping[str, Array]) -> Array:
    """Computes features, ``[configs, features]``; tunables that a config lacks count as 0.

    Args:
        features: Texts that name the features.
        names: Tunables and derived values, scalars or ``[configs]``.
        launch: Properties from :func:`launch_columns`.
    """
    count = max((len(column) for column in launch.values()), default=1)
    found = np.zeros((count, len(features)))
    for index, text in enumerate(features):
        found[:, index] = _feature(text, names, launch)
    return found


def _feature(text: str, names: Mapping[str, Any], launch: Mapping[str, Array]) -> Array | float:
    if text in launch:
        return launch[text]
    name, _, wanted = text.partition("=")
    if name not in names:
        return 0.0
    column = np.atleast_1d(np.asarray(names[name]))
    if wanted:
        is_wanted: Array = (column.astype(str) == wanted).astype(np.float64)
        return is_wanted
    numbers: Array = column.astype(np.float64)
    return numbers if column.dtype == bool else np.log2(1 + numbers)
