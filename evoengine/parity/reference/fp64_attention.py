"""The truth: attention in float64, a stretch of keys at a time, so that no problem is too large for memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs
from evoengine.model import Problem
from evoengine.parity.float_bits import Real, from_bits, rounding_rms
from evoengine.parity.inputs.row_sample import Block, Rows, Sample, place_of, spans

_STRETCH_ELEMENTS: Final = 2**22
"""Scores, and elements of K, that are held in float64 at a time."""


TANH_ERROR: Final = 2.0**-11
"""Relative error of ``tanh.approx.f32``, from the PTX manual: half a step of fp16."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What a call must write at the rows of a sample, and what rounding does to it."""

    o: Real
    """``[n, head_dim]``; a row that sees no key is zero."""
    noise: Real
    """``[n, head_dim]``: the error of O that is to be expected of weights rounded to the dtype (root mean square)."""
    lse: Real
    """``[n]``: the natural logarithm of the sum of all exponentials, the sink's included; -inf where there is none."""
    top: Real
    """``[n]``: the largest logit that a row sees, by size; 0 where it sees none. The sink is none of them."""
    products: Real
    """``[n]``: no smaller than the softmax scale times ``Σ|q||k|`` of the row with any of its sequence's keys."""


class _OnlineSoftmax:
    """The running sums of the rows of one block, all relative to the largest logit so far.

    Rounding a weight ``p`` moves O by ``p r v`` with a relative error ``r`` of 0.2 eps (mean of squares); a ``tanh`` in
    hardware moves a logit ``l`` by a share of 2^-11, and O by ``p l 2^-11 (v - o)``. Errors of different keys are
    independent, so that their squares add up: ``noise² = Σ a v² - 2 o Σ b v + o² Σ b``.
    """

    def __init__(self, problem: Problem, rows: int) -> None:
        shape = (rows, problem.head_dim)
        self._weight_error = rounding_rms(problem.dtype)
        self._logit_error = TANH_ERROR if problem.softcap else 0.0
        self.top, self.largest = np.full(rows, -np.inf), np.zeros(rows)
        self.total, self.o = np.zeros(rows), np.zeros(shape)
        self._a_v2, self._b_v, self._b = np.zeros(shape), np.zeros(shape), np.zeros(rows)

    def add(self, logits: Real, seen: NDArray[np.bool_], v: Real) -> None:
        """Takes some more keys in."""
        self.largest = np.maximum(self.largest, np.abs(logits).max(axis=1, where=seen, initial=0.0))
        self._raise_top(np.maximum(self.top, logits.max(axis=1, where=seen, initial=-np.inf)))
        finite = np.where(np.isfinite(self.top), self.top, 0.0)
        weights = np.exp(np.where(seen, logits - finite[:, None], -np.inf))
        self.total += weights.sum(axis=1)
        self.o += weights @ v
        squares = weights**2
        a = squares * self._weight_error**2
        if self._logit_error:
            b = squares * (self._logit_error * logits) ** 2
            a += b
            self._b_v += b @ v
            self._b += b.sum(axis=1)
        self._a_v2 += a @ v**2

    def add_sinks(self, sinks: Real) -> None:
        """Takes one more logit in for each row, without a value."""
        self._raise_top(np.maximum(self.top, sinks))
        self.total += np.exp(sinks - self.top)

    def finish(self, products: Real) -> Truth:
        """Divides by the sums."""
        some = self.total > 0
        total = np.where(some, self.total, 1.0)
        o = self.o / total[:, None]
        variance = self._a_v2 / total[:, None] ** 2
        if self._logit_error:
            variance += (o**2 * self._b[:, None] - 2 * o * self._b_v) / total[:, None] ** 2
        lse = np.where(some, self.top + np.log(total), -np.inf)
        return Truth(o, np.sqrt(np.maximum(variance, 0.0)), lse, self.largest, products)

    def _raise_top(self, top: Real) -> None:
        keep = np.exp(self.top - np.where(np.isfinite(top), top, 0.0))
        self.total, self.o = self.total * keep, self.o * keep[:, None]
        self._a_v2, self._b_v = self._a_v2 * keep[:, None] ** 2, self._b_v * keep[:, None] ** 2
        self._b, self.top = self._b * keep**2, top


def attention_fp64(inputs: AttentionInputs, sample: Sample) -> Truth:
    """Attention by its definition, in float64."""
    parts = [_block(inputs, block) for block in sample.blocks]
    return Truth(*(np.concatenate([getattr(part, name) for part in parts]) for name in Truth.__dataclass_fields__))


def block_tensors(inputs: AttentionInputs, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bits of Q ``[group * rows, head_dim]``, head by head, and of K and V ``[keys, head_dim]``."""
    problem, place = inputs.problem, place_of(inputs.problem, block.sequence)
    group, keys = problem.heads // problem.kv_heads, problem.sequences[block.sequence][1]
    heads = slice(block.kv_head * group, (block.kv_head + 1) * group)
    stretch = slice(place.first_key, place.first_key + keys)
    q = inputs.q[place.batch, heads][:, place.first_row + block.rows]
    k, v = (tensor[place.batch, block.kv_head, stretch] for tensor in (inputs.k, inputs.v))
    return q.reshape(-1, problem.head_dim), k, v


def block_spans(problem: Problem, block: Block) -> tuple[Rows, Rows]:
    """The keys ``[first, end)`` of the rows that :func:`block_tensors` gives."""
    queries, keys = problem.sequences[block.sequence]
    first, end = spans(problem, queries, keys, block.rows)
    group = problem.heads // problem.kv_heads
    return np.tile(first, group), np.tile(end, group)


def block_sinks(inputs: AttentionInputs, block: Block) -> Real | None:
    """The sink's logit of each of those rows."""
    if inputs.sink is None:
        return None
    group = inputs.problem.heads // inputs.problem.kv_heads
    heads = inputs.sink[block.kv_head * group : (block.kv_head + 1) * group]
    return np.repeat(heads.astype(np.float64), len(block.rows))


def _block(inputs: AttentionInputs, block: Block) -> Truth:
    problem = inputs.problem
    q_bits, k_bits, v_bits = block_tensors(inputs, block)
    q = from_bits(q_bits, problem.dtype) * problem.softmax_scale
    first, end = block_spans(problem, block)
    softmax = _OnlineSoftmax(problem, len(q))
    longest_key = 0.0
    stretch = max(1, _STRETCH_ELEMENTS // max(len(q), problem.head_dim))
    last = int(end.max(where=end > first, initial=0))
    for start in range(int(first.min()), last, stretch):
        stop = min(start + stretch, last)
        k, v = (from_bits(bits[start:stop], problem.dtype) for bits in (k_bits, v_bits))
        keys = np.arange(start, stop)
        seen = (keys >= first[:, None]) & (keys < end[:, None])
        softmax.add(_logits(problem, q @ k.T), seen, v)
        longest_key = max(longest_key, float(np.sqrt(np.einsum("kd,kd->k", k, k).max())))
    sinks = block_sinks(inputs, block)
    if sinks is not None:
        softmax.add_sinks(sinks)
    return softmax.finish(np.sqrt(np.einsum("rd,rd->r", q, q)) * longest_key)  # Cauchy and Schwarz


def _logits(problem: Problem, scores: Real) -> Real:
    if not problem.softcap:
        return scores
    capped: Real = problem.softcap * np.tanh(scores / problem.softcap)
    return capped
