"""Shapes of the parity cases: a few small ones that each exercise several features, cheap ones first.

Every case shares the properties that are compiled into a candidate: head_dim, dtype, mask kind, features. Window sizes,
softcap, lengths and the softmax scale are kernel arguments, so each case has its own. The cost of an emulated launch
depends on the instructions of one CTA more than on the number of CTAs, so each case covers several heads and sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from evoengine.kernel.call import Layout
from evoengine.model import Problem
from evoengine.parity.inputs.case import ParityCase, make_case
from evoengine.parity.inputs.profiles import make_inputs

SINKS: Final = (8.0, -1e4, 3.0, 100.0)
"""Sink logits by head: near the log-sum-exp of some keys, negligible, below it, and too large for exp in f32."""


@dataclass(frozen=True)
class CasePlan:
    """Shape of one small case."""

    name: str
    heads: int
    kv_heads: int
    sequences: tuple[tuple[int, int], ...]
    """(queries, keys) of each sequence; all equal unless the problem is packed."""
    host: str
    """Profile best suited to detect errors in this shape; used for the first K/V head if there are several."""
    left: int
    """Window before the diagonal, if the problem has one."""
    right: int
    """Window after the diagonal, if the problem has one."""
    softcap: float
    scale: float
    """Approximate softmax scale, in units of the usual ``1/sqrt(head_dim)``, which only the problem's own case has."""
    layout: Layout = "bhsd"

    def problem(self, like: Problem) -> Problem:
        """Creates the case's problem with the compiled-in properties of ``like``."""
        queries, keys = zip(*self.sequences, strict=True)
        return replace(
            like,
            batch=len(self.sequences),
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_q=max(queries),
            seq_kv=max(keys),
            window_left=None if like.window_left is None else self.left,
            window_right=None if like.window_right is None else self.right,
            softcap=self.softcap if like.softcap else 0.0,
            lengths_q=queries if like.packed else (),
            lengths_kv=keys if like.packed else (),
        )

    def case(self, like: Problem, profile: str, seed: int) -> ParityCase:
        """Creates the case with its reference results and bounds.

        Args:
            like: Problem with the compiled-in properties.
            profile: Profile of all K/V heads but the first, or of the only one.
            seed: Seed of the inputs.
        """
        profiles = (self.host, profile) if self.kv_heads > 1 else (profile,)
        scale = _hard_to_round(self.scale * like.softmax_scale)
        inputs = make_inputs(self.problem(like), profiles, seed, self.layout, SINKS, scale)
        return make_case(f"{self.name}/{profile}", inputs, seed)


# One row, one key: all tail predicates at once; eight heads share the key.
_SINGLE: Final = CasePlan("single", 8, 1, ((1, 1),), "normal", 0, 1, 5.0, 8.0)
# Ragged rows and keys, several batches, grouped heads, rows outside heads: addressing.
_RAGGED: Final = CasePlan("ragged", 4, 2, ((37, 83),) * 2, "offset", 20, 9, 8.0, 0.4, "bshd")
# More queries than keys: swapped lengths, and rows without visible keys under a mask. With scale 0 all visible keys
# have the same weight, and a product of the scale and a hidden score of -inf is NaN.
_FEW_KEYS: Final = CasePlan("few-keys", 2, 2, ((130, 33),), "normal", 25, 40, 2.0, 0.0)
# Four key tiles of 128, the last one ragged; peaky: the running maximum changes, so every rescale matters. With a
# negative scale the key with the smallest score has the largest logit.
_MULTI_TILE: Final = CasePlan("multi-tile", 2, 2, ((75, 419),), "peaky", 200, 77, 15.0, -0.4)
# As many rows as keys: query tiles that skip whole key tiles on both sides, and partially masked tiles at both edges.
_MASKED_TILES: Final = replace(_MULTI_TILE, sequences=((402, 419),))
# Three rows of four heads, less than a tile; keys that splits share unevenly, some without any.
_DECODE: Final = CasePlan("decode", 8, 2, ((3, 517),), "peaky", 400, 1, 30.0, 0.4)
# A window far smaller than a tile: one key more or less on a side has a large effect.
_NARROW: Final = CasePlan("narrow", 2, 2, ((300, 300),), "constant", 3, 5, 3.0, 2.0)

# Packed: neighbouring sequences are adjacent in memory, and some sequences are empty.
_LENGTHS: Final = CasePlan(
    "lengths", 2, 1, ((1, 1), (0, 0), (31, 33), (65, 63), (64, 64), (127, 129), (128, 128)), "normal", 40, 11, 5.0, 2.0
)
_PACKED_RAGGED: Final = replace(_RAGGED, sequences=((37, 83), (5, 11), (0, 9), (40, 0)))
_PACKED_FEW_KEYS: Final = replace(_FEW_KEYS, sequences=((1, 64), (130, 33), (17, 129)))
_PACKED_TILES: Final = replace(_MULTI_TILE, sequences=((1, 70), (75, 419), (33, 20)))
_PACKED_MASKED_TILES: Final = replace(_MULTI_TILE, sequences=((1, 70), (402, 419), (33, 20)))
_PACKED_DECODE: Final = replace(_DECODE, sequences=((1, 33), (3, 517), (0, 5), (2, 80)))
_PACKED_NARROW: Final = replace(_NARROW, sequences=((300, 300), (40, 90)))


def plans_for(problem: Problem) -> tuple[CasePlan, ...]:
    """Returns the shapes for the compiled-in properties of a problem, cheap ones first."""
    windowed = problem.window_left is not None or problem.window_right is not None
    if problem.packed:
        tiles = _PACKED_MASKED_TILES if problem.masked else _PACKED_TILES
        narrow = (_PACKED_NARROW,) if windowed else ()
        return (_SINGLE, _PACKED_FEW_KEYS, _PACKED_RAGGED, _LENGTHS, *narrow, tiles, _PACKED_DECODE)
    tiles = _MASKED_TILES if problem.masked else _MULTI_TILE
    narrow = (_NARROW,) if windowed else ()
    return (_SINGLE, _FEW_KEYS, _RAGGED, *narrow, tiles, _DECODE)


def _hard_to_round(scale: float) -> float:
    """Returns a number near ``scale`` that is inexact in 16 bits: a kernel must keep the scale in f32.

    fp16 rounds 0.17388 times any power of two by 0.03 %, and by 0.05 % after multiplication by log2(e); bf16 by 0.03 %
    and 0.3 %. The decode case detects an error of 0.05 % in fp16.
    """
    if scale == 0:
        return 0.0
    mantissa = 0.17388
    return math.copysign(mantissa * 2.0 ** round(math.log2(abs(scale) / mantissa)), scale)


def limited(problem: Problem, max_flops: int) -> Problem:
    """Returns the problem, or a slice of it that needs at most about ``max_flops``, masked pairs included.

    Sequences and heads are removed first, because they are independent of each other, then query rows. Masks are
    aligned bottom-right, so the last rows are kept, which attend to the most keys.
    """
    full = problem.heads * _pair_flops(problem)
    if full <= max_flops:
        return problem
    group = problem.heads // problem.kv_heads
    heads = group * max(1, min(problem.kv_heads, max_flops // max(1, group * _pair_flops(problem))))
    cut = _fewer_sequences(replace(problem, heads=heads, kv_heads=heads // group), max_flops)
    if heads * _pair_flops(cut) > max_flops and heads > 1:
        heads = min(group, max(1, max_flops // _pair_flops(cut)))
        cut = replace(cut, heads=heads, kv_heads=1)
    return _fewer_rows(cut, max_flops)


def _pair_flops(problem: Problem) -> int:
    """Computes the work of one head over all sequences."""
    return 4 * problem.head_dim * sum(queries * keys for queries, keys in problem.sequences)


def _fewer_sequences(problem: Problem, max_flops: int) -> Problem:
    """Removes the smallest sequences, all but one at most, until the work fits."""
    sequences = list(problem.sequences)
    while len(sequences) > 1:
        work = 4 * problem.head_dim * problem.heads * sum(queries * keys for queries, keys in sequences)
        if work <= max_flops:
            break
        sequences.pop(sequences.index(min(sequences, key=lambda pair: pair[0] * pair[1])))
    return _with_sequences(problem, sequences)


def _fewer_rows(problem: Problem, max_flops: int) -> Problem:
    work = problem.heads * _pair_flops(problem)
    if work <= max_flops:
        return problem
    sequences = [(max(min(1, n), n * max_flops // work), keys) for n, keys in problem.sequences]
    return _with_sequences(problem, sequences)


def _with_sequences(problem: Problem, sequences: Sequence[tuple[int, int]]) -> Problem:
    queries, keys = zip(*sequences, strict=True)
    return replace(
        problem,
        batch=len(sequences),
        seq_q=max(queries),
        seq_kv=max(keys),
        lengths_q=queries if problem.packed else (),
        lengths_kv=keys if problem.packed else (),
    )


def problem_case(
    problem: Problem,
    seed: int,
    max_flops: int | None = None,
    profiles: Sequence[str] = (),
    part: Problem | None = None,
) -> ParityCase:
    """Creates the case of the problem itself, or of a slice of it, which is then named ``problem-slice``.

    Args:
        problem: Problem of the search.
        seed: Seed of the inputs.
        max_flops: Largest work of the case; None for no limit.
        profiles: Profiles of the inputs; empty for normal ones.
        part: Slice to use; None for the largest within ``max_flops``.
    """
    shape = part or (problem if max_flops is None else limited(problem, max_flops))
    name = "problem" if shape == problem else "problem-slice"
    return make_case(name, make_inputs(shape, profiles or "normal", seed), seed)
