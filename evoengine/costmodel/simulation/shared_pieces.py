"""Pieces of work whose keys several CTAs share: in splits, or in the last round of a persistent grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from evoengine.costmodel.simulation.launch import REMEMBERED, Pieces
from evoengine.costmodel.simulation.schedule import Array


def shared_pieces(pieces: Pieces, names: Mapping[str, Any]) -> Pieces:
    """Divides the keys of pieces that several CTAs share: all of them, or those of the last round.

    Args:
        pieces: Pieces of work with all their key tiles.
        names: Tunables and derived values of the config.

    Returns:
        What each CTA computes, in order; ``pieces`` itself if none is shared.
    """
    count, resident = len(pieces.tiles), int(names["RESIDENT_CTAS"])
    if names["SPLIT_WAVES"]:
        splits = _splits(names, count, int(pieces.tiles.max()))
        return replace(pieces, tiles=np.repeat(np.ceil(pieces.tiles / splits), splits)) if splits > 1 else pieces
    rest = count % resident if names["SHARE_LAST_ROUND"] else 0
    if rest == 0:
        return pieces
    runs = _runs(rest, int(pieces.tiles[-1]), resident)
    return replace(pieces, tiles=np.concatenate([pieces.tiles[: count - rest], runs.tiles]))


@dataclass(frozen=True)
class Sharing:
    """How CTAs share pieces of work."""

    splits: float
    """Mean number of CTAs that share a piece."""
    parts: float
    """Most parts of pieces whose partial results the CTAs in one slot of an SM store."""
    merges: float = 1.0
    """Most pieces that these CTAs merge."""


def sharing_of(names: Mapping[str, Any], pieces: int, tiles: int) -> Sharing:
    """Returns how the CTAs of a config share pieces, in splits or in the last round.

    Args:
        names: Tunables and derived values of the config.
        pieces: Number of pieces of work.
        tiles: Key tiles of the longest.
    """
    resident = int(names["RESIDENT_CTAS"])
    if not names["SPLIT_WAVES"]:
        return _runs(pieces % resident, tiles, resident).sharing
    splits = _splits(names, pieces, tiles)
    return Sharing(splits, max(1.0, pieces * splits / resident), max(1.0, pieces / resident))


@dataclass(frozen=True)
class _Runs:
    """Runs of key tiles in which CTAs share the pieces of the last round; a run may cross into the next piece."""

    tiles: Array
    """Key tiles of the parts of pieces: first those that CTAs begin with, then those that they go on with."""
    sharing: Sharing


@lru_cache(REMEMBERED)
def _runs(pieces: int, length: int, resident: int) -> _Runs:
    """Distributes the key tiles of fewer pieces than CTAs, all of one length, as the kernel does."""
    total = pieces * length
    ctas = min(resident, total)
    bounds = np.arange(ctas + 1) * total // ctas
    first = np.minimum(bounds[1:], (bounds[:-1] // length + 1) * length)
    second = bounds[1:] - first
    order = np.argsort(second == 0, kind="stable")  # second parts belong to the CTAs of the first ones in front
    crossing = int(np.count_nonzero(second))
    tiles = np.concatenate([(first - bounds[:-1])[order], second[order][:crossing]]).astype(np.float64)
    return _Runs(tiles, Sharing(len(tiles) / pieces, 1 + (crossing > 0)))


def _splits(names: Mapping[str, Any], pieces: int, tiles: int) -> int:
    """Returns the number of CTAs that share a piece of work in a grid of splits."""
    most = int(names["SPLIT_WAVES"]) * int(names["RESIDENT_CTAS"]) // pieces
    return max(1, min(tiles // int(names["SPLIT_TILES"]), most))
