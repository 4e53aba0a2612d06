"""Reference attention in float64, computed in blocks of keys so that memory stays bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs
from evoengine.model import Problem
from evoengine.parity.float_bits import Real, from_bits, rounding_rms
from evoengine.parity.reference.row_sample import Block, Rows, Sample, place_of, spans

_BLOCK_ELEMENTS: Final = 2**22
"""Largest number of scores, and of elements of K, held in float64 at a time."""

_LEAST_NORMAL: Final = 2.0**-126
"""Smaller f32 numbers may become zero: ``ex2.approx.ftz`` does so with weights, relative to a row's largest logit."""
TANH_ERROR: Final = 2.0**-11
"""Relative error of ``tanh.approx.f32``, from the PTX manual: half a step of fp16."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Reference results of the rows of a sample, and terms of their rounding errors."""

    o: Real
    """``[n, head_dim]``; rows without visible keys are zero."""
    noise: Real
    """``[n, head_dim]``: expected RMS error of O from weights rounded to the dtype."""
    slope: Real
    """``[n, head_dim]``: derivative of O by the logarithm of the softmax scale."""
    octave: Real
    """``[n, head_dim]``: derivative of O by a factor ``1 + t f`` on each weight ``2^(n + f)``, for ``|f| <= 1/2``."""
    squares: Real
    """``[n]``: sum of the squared weights; a row's weights, its sink's included, sum to one."""
    lse: Real
    """``[n]``: natural logarithm of the sum of all exponentials, including the sink's; -inf if there is none."""
    top: Real
    """``[n]``: largest absolute logit of the visible keys, without the sink; 0 if there is none."""
    products: Real
    """``[n]``: upper bound of the softmax scale's magnitude times ``Σ|q||k|`` over the keys of the sequence."""
    flushed: Real
    """``[n]``: upper bound of what an element of O loses where f32 numbers below the normal ones become zero."""


class _OnlineSoftmax:
    """Running sums of the rows of one block, relative to the largest logit so far.

    Rounding a weight ``p`` changes O by ``p r v`` with a relative RMS error ``r`` of 0.2 eps. The hardware's ``tanh``
    changes a logit ``l`` by a relative 2^-11, and O by ``p l 2^-11 (v - o)``. Errors of different keys are independent,
    so their squares add up: ``noise² = Σ a v² - 2 o Σ b v + o² Σ b``.

    If the softmax scale grows by a relative ``t``, a logit grows by ``t l'``: ``l' = l`` without a softcap ``c``,
    ``l' = s (1 - (l/c)²)`` with one, where ``s`` is the logit before it, and 0 for a sink. The derivative of O is
    ``Σ p l' v - o Σ p l'``. In the same way, ``f`` instead of ``l'`` gives the effect of an exponential that is wrong
    between powers of two, relative to the row's largest logit.
    """

    def __init__(self, problem: Problem, rows: int) -> None:
        shape = (rows, problem.head_dim)
        self._weight_error = rounding_rms(problem.dtype)
        self._logit_error = TANH_ERROR if problem.softcap else 0.0
        self.top, self.largest = np.full(rows, -np.inf), np.zeros(rows)
        self.total, self.o = np.zeros(rows), np.zeros(shape)
        self._a_v2, self._b_v, self._b = np.zeros(shape), np.zeros(shape), np.zeros(rows)
        self._tilted_v, self._tilted, self._squares = np.zeros((2, *shape)), np.zeros((2, rows)), np.zeros(rows)

    def add(self, logits: Real, slopes: Real, seen: NDArray[np.bool_], v: Real) -> None:
        """Adds a block of keys.

        Args:
            logits: Logits ``[rows, keys]``.
            slopes: Their derivatives by the logarithm of the softmax scale ``[rows, keys]``.
            seen: Mask of visible pairs ``[rows, keys]``.
            v: Values ``[keys, head_dim]``.
        """
        self.largest = np.maximum(self.largest, np.abs(logits).max(axis=1, where=seen, initial=0.0))
        self._raise_top(np.maximum(self.top, logits.max(axis=1, where=seen, initial=-np.inf)))
        finite = np.where(np.isfinite(self.top), self.top, 0.0)
        weights = np.exp(np.where(seen, logits - finite[:, None], -np.inf))
        self.total += weights.sum(axis=1)
        self.o += weights @ v
        octaves = (logits - finite[:, None]) / math.log(2)
        for index, tilts in enumerate((slopes, octaves - np.round(octaves))):
            tilted = weights * tilts
            self._tilted_v[index] += tilted @ v
            self._tilted[index] += tilted.sum(axis=1)
        squares = weights**2
        self._squares += squares.sum(axis=1)
        a = squares * self._weight_error**2
        if self._logit_error:
            b = squares * (self._logit_error * logits) ** 2
            a += b
            self._b_v += b @ v
            self._b += b.sum(axis=1)
        self._a_v2 += a @ v**2

    def add_sinks(self, sinks: Real) -> None:
        """Adds one logit without a value to each row."""
        self._raise_top(np.maximum(self.top, sinks))
        self.total += np.exp(sinks - np.where(np.isfinite(self.top), self.top, 0.0))

    def finish(self, products: Real, flushed: Real) -> Truth:
        """Normalises the running sums."""
        some = self.total > 0
        total = np.where(some, self.total, 1.0)
        o = self.o / total[:, None]
        variance = self._a_v2 / total[:, None] ** 2
        if self._logit_error:
            variance += (o**2 * self._b[:, None] - 2 * o * self._b_v) / total[:, None] ** 2
        lse = np.where(some, self.top + np.log(total), -np.inf)
        slope, octave = (self._tilted_v - self._tilted[:, :, None] * o) / total[:, None]
        noise = np.sqrt(np.maximum(variance, 0.0))
        return Truth(o, noise, slope, octave, self._squares / total**2, lse, self.largest, products, flushed)

    def _raise_top(self, top: Real) -> None:
        keep = np.exp(self.top - np.where(np.isfinite(top), top, 0.0))
        self.total, self.o = self.total * keep, self.o * keep[:, None]
        self._a_v2, self._b_v = self._a_v2 * keep[:, None] ** 2, self._b_v * keep[:, None] ** 2
        self._tilted_v, self._tilted = self._tilted_v * keep[:, None], self._tilted * keep
        self._b, self._squares, self.top = self._b * keep**2, self._squares * keep**2, top


def attention_fp64(inputs: AttentionInputs, sample: Sample) -> Truth:
    """Computes attention by its definition, in float64, for the rows of a sample."""
    parts = [_block(inputs, block) for block in sample.blocks]
    return Truth(*(np.concatenate([getattr(part, name) for part in parts]) for name in Truth.__dataclass_fields__))


def block_tensors(inputs: AttentionInputs, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the bits of Q ``[group * rows, head_dim]``, head by head, and of K and V ``[keys, head_dim]``."""
    problem, place = inputs.problem, place_of(inputs.problem, block.sequence)
    group, keys = problem.heads // problem.kv_heads, problem.sequences[block.sequence][1]
    heads = slice(block.kv_head * group, (block.kv_head + 1) * group)
    stretch = slice(place.first_key, place.first_key + keys)
    q = inputs.q[place.batch, heads][:, place.first_row + block.rows]
    k, v = (tensor[place.batch, block.kv_head, stretch] for tensor in (inputs.k, inputs.v))
    return q.reshape(-1, problem.head_dim), k, v


def block_spans(problem: Problem, block: Block) -> tuple[Rows, Rows]:
    """Returns the visible keys ``[first, end)`` of the rows of :func:`block_tensors`, ``[group * rows]`` each."""
    queries, keys = problem.sequences[block.sequence]
    first, end = spans(problem, queries, keys, block.rows)
    group = problem.heads // problem.kv_heads
    return np.tile(first, group), np.tile(end, group)


def block_sinks(inputs: AttentionInputs, block: Block) -> Real | None:
    """Returns the sink logit of each row of :func:`block_tensors`, ``[group * rows]``; None without sinks."""
    if inputs.sink is None:
        return None
    group = inputs.problem.heads // inputs.problem.kv_heads
    heads = inputs.sink[block.kv_head * group : (block.kv_head + 1) * group]
    return np.repeat(heads.astype(np.float64), len(block.rows))


def _block(inputs: AttentionInputs, block: Block) -> Truth:
    problem = inputs.problem
    q_bits, k_bits, v_bits = block_tensors(inputs, block)
    q = from_bits(q_bits, problem.dtype) * inputs.softmax_scale
    first, end = block_spans(problem, block)
    softmax = _OnlineSoftmax(problem, len(q))
    longest_key = largest_value = 0.0
    stretch = max(1, _BLOCK_ELEMENTS // max(len(q), problem.head_dim))
    last = int(end.max(where=end > first, initial=0))
    for start in range(int(first.min()), last, stretch):
        stop = min(start + stretch, last)
        k, v = (from_bits(bits[start:stop], problem.dtype) for bits in (k_bits, v_bits))
        keys = np.arange(start, stop)
        seen = (keys >= first[:, None]) & (keys < end[:, None])
        softmax.add(*softcapped(problem, q @ k.T), seen, v)
        longest_key = max(longest_key, float(np.sqrt(np.einsum("kd,kd->k", k, k).max())))
        largest_value = max(largest_value, float(np.abs(v).max()))
    sinks = block_sinks(inputs, block)
    if sinks is not None:
        softmax.add_sinks(sinks)
    products = np.sqrt(np.einsum("rd,rd->r", q, q)) * longest_key  # Cauchy-Schwarz bound
    return softmax.finish(products, _LEAST_NORMAL * (1 + np.maximum(end - first, 0) * largest_value))


def softcapped(problem: Problem, scores: Real) -> tuple[Real, Real]:
    """Returns the logits of scaled scores ``[rows, keys]``, and their derivatives by the logarithm of the scale."""
    if not problem.softcap:
        return scores, scores
    tanh = np.tanh(scores / problem.softcap)
    return problem.softcap * tanh, scores * (1 - tanh**2)
