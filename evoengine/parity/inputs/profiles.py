"""Seeded random inputs of the parity cases.

A profile is a small function. A new entry in :data:`PROFILES` is used with every shape of the pool
(:mod:`evoengine.parity.inputs.pool`). It changes the draw of every candidate, so that a stored seed reproduces a
verdict only with the version that stored it. Results must stay within the dtype, and there is always at least one key.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs, Logits
from evoengine.kernel.memory_layout import DENSE, CallLayout, TensorLayout
from evoengine.model import DType, Problem
from evoengine.parity.float_bits import Bits, to_bits
from evoengine.parity.reference.row_sample import place_of

Floats = NDArray[np.floating]
QKV = tuple[Floats, Floats, Floats]
Profile = Callable[[Floats, Floats, Floats, np.random.Generator], QKV]
"""Transforms independent standard normal Q ``[group, rows, head_dim]``, K and V ``[keys, head_dim]`` into inputs.

All query heads of one K/V head share a profile; different K/V heads may have different profiles.
"""

_LARGEST: Final = 6e4
"""Slightly below fp16's largest number, because an average of such values may be rounded up."""
_FAR: Final = 2.0**12
_LOUD: Final = 2.0**14
_QUIET: Final = 2.0**-16
_BEYOND_FP16: Final = 2.0**40
_VAST: Final = 2.0**8
_PARALLEL_ELEMENTS: Final = 2**21
"""Elements of K from which threads draw its blocks, if these are large as well."""
_PARALLEL_BLOCK: Final = 2**16
"""Threads that draw smaller blocks wait for each other, and take longer than one."""


_TOP_LOGIT: Final = 400.0
"""Logit of a dominant key at the usual softmax scale: exp overflows f32 from 89 on, and fp16 from 12 on."""
_MANY_ROWS: Final = 36
"""Number of kinds of rows where there are as many rows."""
_FURTHER_KEYS: Final = 6
"""Keys that dominate one kind of row each, where there are many rows."""
_WARP_ROWS: Final = 16
_LOW_LOGIT: Final = 1.25 * _TOP_LOGIT
"""Distance by which logits are moved below zero; even those of dominant keys are negative then."""
_COMMON_KEY: Final = 32.0
"""Component that all keys share; queries of lowered rows point away from it."""
_SHARES: Final = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.4, 0.7, 1.0), (1.0, 0.7, 0.4))
"""Logits of the early, the middle and the late dominant key in units of the largest, for five kinds of rows."""


def _peaky(q: Floats, k: Floats, v: Floats, rng: np.random.Generator) -> QKV:
    """Makes a few keys dominate each row, and up to three keys dominate many rows: an early, a middle and a late one.

    The rows take turns between the kinds of :func:`_kinds_of_rows`, so that every kind is present wherever the heads
    that share K and V have that many rows together, whatever the sign of the softmax scale. The kinds of few rows
    follow each other, so that some heads consist of ordinary ones. Many rows are mixed, and further keys anywhere
    dominate one kind of row each, so that a maximum often grows in few rows of a warp only: detects lanes that decide
    for each other whether to rescale. All logits of many rows are below zero: detects maxima that are compared or
    carried as if they were not.
    """
    head_dim, keys, rows = q.shape[2], len(k), q.shape[0] * q.shape[1]
    few = rows < _MANY_ROWS
    count = min(3, keys, head_dim)
    further = 0 if few else min(_FURTHER_KEYS, keys - count, head_dim - count)
    lowered = int(count + further < head_dim)
    axes = np.linalg.qr(rng.standard_normal((head_dim, count + further + lowered)))[0].T.astype(np.float32)
    axes, common = axes[: count + further], axes[count + further :]
    shares = _kinds_of_rows(rng.permutation(np.array(_SHARES, np.float32))[:, :count], further, few=few)
    rounds = np.tile(np.arange(len(shares)), (-(-rows // len(shares)), 1))
    kinds = (rounds if few else rng.permuted(rounds, axis=1)).ravel()[:rows].reshape(q.shape[:2])
    q = 4 * (q - (q @ axes.T) @ axes + math.sqrt(head_dim) * shares[kinds] @ axes)
    # Under a causal mask only the rows after a key see it. With as many rows as keys, the late key is therefore not one
    # of the last: rows of all kinds see it.
    unseen = keys // 5 if q.shape[1] > keys // 2 else 0
    late = rng.integers(-(keys // 4) - 1, -unseen)
    places = np.array([rng.integers(min(8, keys)), rng.integers(keys // 3, keys // 2 + 1), late])[:count] % keys
    others = rng.choice(np.setdiff1d(np.arange(keys), places), further, replace=False)
    for place, axis in zip([*places, *others], axes, strict=True):
        k[place] = _TOP_LOGIT / 4 * axis
        v[place] /= 16  # small results: the tolerance of the head follows its other rows
    for axis in common:
        _lower_rows(q, k, axis, rng)
    return q, k, v


def _lower_rows(q: Floats, k: Floats, axis: Floats, rng: np.random.Generator) -> None:
    """Moves all logits of many rows far below zero, in place, which changes no result.

    In every 48 rows, 16 stay, 16 are lowered, and 16 are lowered and raised in turn, so that rows are low whatever the
    sign of the softmax scale.
    """
    rows = np.arange(q.shape[1])
    turn = (rows // _WARP_ROWS + rng.integers(3)) % 3
    lowered = np.where(turn == 2, 2 * (rows % 2) - 1, turn)
    q -= (q @ axis + lowered * math.sqrt(q.shape[2]) * _LOW_LOGIT / _COMMON_KEY)[..., None] * axis
    k += (_COMMON_KEY - k @ axis)[:, None] * axis


def _kinds_of_rows(dominated: Floats, further: int, *, few: bool) -> Floats:
    """Returns the logits of the dominant keys in units of the largest, ``[kinds, keys]``.

    Five kinds have one dominant key in one of three places, or three of rising or of falling size; one kind for each
    further key has that one alone. As many have the opposite signs, for which these keys vanish. In the remaining
    kinds, two if there are few rows, no dominant key has an effect.
    """
    count = dominated.shape[1]
    led = np.zeros((len(dominated) + further, count + further), np.float32)
    led[: len(dominated), :count] = dominated
    led[len(dominated) :, count:] = np.eye(further)
    ordinary = np.zeros((2 if few else _MANY_ROWS - 2 * len(led), count + further), np.float32)
    return np.concatenate([led, -led, ordinary])


def _unlike(q: Floats, k: Floats, v: Floats, factor: float, rng: np.random.Generator) -> QKV:
    """Multiplies Q or K by a factor and divides the other by it, which changes no logit."""
    factor = factor if rng.integers(2) else 1 / factor
    return q * factor, k / factor, v


def _outlier(q: Floats, k: Floats, v: Floats, rng: np.random.Generator) -> QKV:
    k[rng.integers(len(k) // 2, len(k))] *= 64
    return q, k, v


PROFILES: Final[Mapping[str, Profile]] = {
    "normal": lambda q, k, v, _: (q, k, v),
    # A few keys dominate, in some rows an early one and in others a late one: detects a maximum that is taken from some
    # tiles only, not carried from tile to tile, not followed by a rescale, or not merged between splits.
    "peaky": _peaky,
    # Logits of several hundred: detects a maximum that is not subtracted, and a scale or score with too few bits.
    "large": lambda q, k, v, _: (16 * q, 4 * k, v),
    # A non-zero mean: detects keys that are dropped, doubled, or read past the end.
    "offset": lambda q, k, v, _: (q + 0.5, k + 0.5, v + 0.5),
    # One late key dominates half of the rows and vanishes in the others: detects a maximum taken over hidden keys or
    # other rows, and partial results that are merged without weights.
    "outlier": _outlier,
    # All keys are equal, so all visible keys have the same weight: detects one key too many or too few in every row.
    "constant": lambda q, k, v, _: (q, np.repeat(k[:1], len(k), axis=0), v),
    # Values and results below fp16's normal numbers: detects subnormals that are flushed to zero.
    "tiny": lambda q, k, v, _: (q / 64, k / 64, v * _QUIET),
    # V and one of Q and K up to fp16's largest numbers, the other below its normal ones: detects scores or sums that
    # overflow a narrow accumulator, and subnormal Q or K that is flushed to zero.
    "huge": lambda q, k, v, rng: _unlike(q, k, np.clip(v * _LOUD, -_LARGEST, _LARGEST), _FAR, rng),
    # All values and the result are near one: detects weights that do not sum to one.
    "flat": lambda q, k, v, _: (1 + q / 64, 1 + k / 64, 1 + v / 64),
}

BF16_RANGE: Final[Mapping[str, Profile]] = {
    "tiny": lambda q, k, v, _: (q / 64, k / 64, v / _BEYOND_FP16),
    "huge": lambda q, k, v, rng: _unlike(q, k, v * _BEYOND_FP16, _BEYOND_FP16, rng),
}
"""Profiles of :data:`PROFILES` for bf16, with numbers that fp16 does not hold: detects fp16 between steps."""

FAINT: Final[Mapping[str, Profile]] = {
    "faint-after-the-first": lambda q, k, v, _: _faint(q, k, v, 0),
    "faint-before-the-last": lambda q, k, v, _: _faint(q, k, v, len(k) - q.shape[1]),
}
"""Further profiles, which the pool does not deal out: one key that all rows see has nearly all the weight."""


def _faint(q: Floats, k: Floats, v: Floats, place: int, octaves: int = 15) -> QKV:
    """Gives each key but one about 2^-octaves of that one's weight, and most of the result: detects lost weights.

    fp16 has no normal numbers of 2^-15, and 2,000 such keys have 6 % of the weight. They differ, so that their rounding
    errors do not add up.
    """
    q, k, v = 1 + q / 64, k / 4, 1 + v / 8
    k[place] = octaves * math.log(2.0) / math.sqrt(q.shape[2])
    v[place] /= 64
    return q, k, v


def _crowd(octaves: int, *, first: bool) -> Profile:
    return lambda q, k, v, _: _faint(q, k, v, 0 if first else len(k) - q.shape[1], octaves)


def _zeros(q: Floats, k: Floats, v: Floats, rng: np.random.Generator) -> QKV:
    """Makes every other row of Q and a quarter of the keys zero, as padding is."""
    q[:, ::2] = 0
    k[rng.random(len(k)) < 1 / 4] = 0
    return q, k, v


EXTREME: Final[Mapping[str, Profile]] = {
    # Products of Q and K up to 2^18: detects scores that fp16 holds or limits before the softmax scale, which is tiny.
    "vast": lambda q, k, v, _: (q * _VAST, k * _VAST, v),
    # Scores that are exactly zero: detects a zero that is taken for a hidden key, or for a maximum that is not known.
    "zeros": _zeros,
}
"""Further profiles for a tiny softmax scale, which the pool does not deal out."""

CROWD_OCTAVES: Final = (4, 8, 14, 18)
CROWD: Final[Mapping[str, Profile]] = {
    f"{octaves}-octaves-{'first' if first else 'late'}": _crowd(octaves, first=first)
    for octaves in CROWD_OCTAVES
    for first in (True, False)
}
"""Profiles in which one key leads in all rows by so many octaves, and the others have most of the result: detects tiles
that are skipped, or maxima that are not raised, where all rows of a warp or CTA agree. In the other profiles, kinds of
rows are mixed within a warp."""


def make_inputs(
    problem: Problem,
    profiles: str | Sequence[str],
    seed: int,
    layout: CallLayout = DENSE,
    sinks: Sequence[float] = (),
    scale: float | None = None,
) -> AttentionInputs:
    """Draws independent Q, K and V of one problem, and its sinks.

    Args:
        problem: Problem with shape and dtype.
        profiles: Keys of :data:`PROFILES`, :data:`FAINT`, :data:`EXTREME` or :data:`CROWD`, which alternate over the
            K/V heads of all sequences.
        seed: Random seed; the same seed, problem and profiles give the same bits on every machine.
        layout: Layouts of the tensors in memory.
        sinks: Sink logits, which alternate over the heads; empty for random ones near the logits of the keys.
        scale: Factor on QKᵀ; None for the problem's own.
    """
    names = (profiles,) if isinstance(profiles, str) else tuple(profiles)
    known = {**PROFILES, **(BF16_RANGE if problem.dtype is DType.BF16 else {}), **FAINT, **EXTREME, **CROWD}
    drawn = [known[name] for name in names]
    entropy = (seed, zlib.crc32(f"{problem.key}/{'/'.join(names)}".encode()))
    tensors = _Tensors(problem, layout)
    blocks = range(len(problem.sequences) * problem.kv_heads)

    def fill(block: int) -> None:
        rng = np.random.default_rng([*entropy, block])
        tensors.fill(block, drawn[block % len(names)], rng)

    elements = problem.head_dim * (problem.memory_batch * problem.kv_heads * problem.rows_kv)
    if elements >= _PARALLEL_ELEMENTS and elements >= _PARALLEL_BLOCK * len(blocks):
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            list(threads.map(fill, blocks))
    else:
        for block in blocks:
            fill(block)
    sink = _sink_logits(problem, sinks, np.random.default_rng([*entropy, len(blocks)])) if problem.sink else None
    return AttentionInputs.of(problem, tensors.q, tensors.k, tensors.v, layout, sink, scale)


class _Tensors:
    """Bits of Q, K and V in memory order, filled in blocks of one K/V head of one sequence."""

    def __init__(self, problem: Problem, layout: CallLayout) -> None:
        self._problem = problem
        self.q = self._empty(problem.heads, problem.rows_q, layout.q)
        self.k = self._empty(problem.kv_heads, problem.rows_kv, layout.k)
        self.v = self._empty(problem.kv_heads, problem.rows_kv, layout.v)

    def _empty(self, heads: int, rows: int, layout: TensorLayout) -> Bits:
        """Allocates dense memory in the layout's axis order; returns ``[memory_batch, heads, rows, head_dim]``."""
        shape = (self._problem.memory_batch, heads, rows, self._problem.head_dim)
        return TensorLayout(layout.order).view(np.empty(math.prod(shape), np.uint16), shape)

    def fill(self, block: int, profile: Profile, rng: np.random.Generator) -> None:
        """Writes Q, K and V of one block (a sequence and a key/value head), drawn by ``profile``."""
        problem = self._problem
        sequence, kv_head = divmod(block, problem.kv_heads)
        (queries, keys), place = problem.sequences[sequence], place_of(problem, sequence)
        group = problem.heads // problem.kv_heads
        shapes = ((group, queries, problem.head_dim), (keys, problem.head_dim), (keys, problem.head_dim))
        q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
        if keys:
            q, k, v = profile(q, k, v, rng)
        heads = slice(kv_head * group, (kv_head + 1) * group)
        self.q[place.batch, heads, place.first_row : place.first_row + queries] = to_bits(q, problem.dtype)
        for tensor, values in ((self.k, k), (self.v, v)):
            keys_here = slice(place.first_key, place.first_key + keys)
            tensor[place.batch, kv_head, keys_here] = to_bits(values, problem.dtype)


def _sink_logits(problem: Problem, given: Sequence[float], rng: np.random.Generator) -> Logits:
    if given:
        return np.array([given[head % len(given)] for head in range(problem.heads)], np.float32)
    near = rng.standard_normal(problem.heads) + math.log(problem.seq_kv)  # the expected log-sum-exp of normal keys
    return near.astype(np.float32)
