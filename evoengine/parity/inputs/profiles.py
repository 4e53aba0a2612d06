"""Seeded inputs. A profile is a small function; to add one, add an entry to :data:`PROFILES`."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs, Layout, Logits, memory_axes
from evoengine.model import Problem
from evoengine.parity.float_bits import Bits, to_bits
from evoengine.parity.inputs.row_sample import place_of

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
_FAINT: Final = 2.0**-16
_PARALLEL_ELEMENTS: Final = 2**21


def _outlier(q: Floats, k: Floats, v: Floats, rng: np.random.Generator) -> QKV:
    k[rng.integers(len(k) // 2, len(k))] *= 64
    return q, k, v


PROFILES: Final[Mapping[str, Profile]] = {
    "normal": lambda q, k, v, _: (q, k, v),
    # A few keys dominate and the running maximum changes late: detects a missing rescale.
    "peaky": lambda q, k, v, _: (4 * q, k, v),
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
    "tiny": lambda q, k, v, _: (q / 64, k / 64, v * _FAINT),
    # Q and V up to fp16's largest numbers, K below its normal ones: detects scores or sums that overflow a narrow
    # accumulator, and subnormal K that is flushed to zero.
    "huge": lambda q, k, v, _: (q * _FAR, k / _FAR, np.clip(v * _LOUD, -_LARGEST, _LARGEST)),
    # All values and the result are near one: detects weights that do not sum to one.
    "flat": lambda q, k, v, _: (1 + q / 64, 1 + k / 64, 1 + v / 64),
}


def make_inputs(
    problem: Problem,
    profiles: str | Sequence[str],
    seed: int,
    layout: Layout = "bhsd",
    sinks: Sequence[float] = (),
    scale: float | None = None,
) -> AttentionInputs:
    """Draws independent Q, K and V of one problem, and its sinks.

    Args:
        problem: Problem with shape and dtype.
        profiles: Keys of :data:`PROFILES`, which alternate over the K/V heads of all sequences in order.
        seed: Random seed; the same seed, problem and profiles give the same bits on every machine.
        layout: Order of the axes in memory.
        sinks: Sink logits, which alternate over the heads; empty for random ones near the logits of the keys.
        scale: Factor on QKᵀ; None for the problem's own.
    """
    names = (profiles,) if isinstance(profiles, str) else tuple(profiles)
    entropy = (seed, zlib.crc32(f"{problem.key}/{'/'.join(names)}".encode()))
    tensors = _Tensors(problem, layout)
    blocks = range(len(problem.sequences) * problem.kv_heads)

    def fill(block: int) -> None:
        rng = np.random.default_rng([*entropy, block])
        tensors.fill(block, PROFILES[names[block % len(names)]], rng)

    if problem.head_dim * (problem.memory_batch * problem.kv_heads * problem.rows_kv) < _PARALLEL_ELEMENTS:
        for block in blocks:
            fill(block)
    else:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            list(threads.map(fill, blocks))
    sink = _sink_logits(problem, sinks, np.random.default_rng([*entropy, len(blocks)])) if problem.sink else None
    return AttentionInputs.of(problem, tensors.q, tensors.k, tensors.v, layout, sink, scale)


class _Tensors:
    """Bits of Q, K and V in memory order, filled in blocks of one K/V head of one sequence."""

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self._problem = problem
        self.q = self._empty(problem.heads, problem.rows_q, layout)
        self.k, self.v = (self._empty(problem.kv_heads, problem.rows_kv, layout) for _ in range(2))

    def _empty(self, heads: int, rows: int, layout: Layout) -> Bits:
        """Allocates memory in the layout and returns its logical view ``[memory_batch, heads, rows, head_dim]``."""
        axes = memory_axes(layout)
        shape = (self._problem.memory_batch, heads, rows, self._problem.head_dim)
        return np.empty([shape[axis] for axis in axes], np.uint16).transpose(axes)

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
