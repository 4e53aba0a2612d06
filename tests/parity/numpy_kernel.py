"""Attention kernel in NumPy with selectable mistakes: float32, base 2, tiles of keys, P rounded to the dtype.

It shares no code with the reference. It works row by row with masks from the definition, and with the rounding of a GPU
kernel, including the precision of the GPU's ``tanh``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.model import Problem
from evoengine.parity.float_bits import from_bits, round_to, to_bits

F32 = np.float32
LOG2E = F32(np.log2(np.e))
LN2 = F32(np.log(2))


@dataclass(frozen=True)
class Mistake:
    """Mistakes of a kernel; the defaults are correct."""

    left_by: int = 0
    """Number of keys by which the window is too wide on the left."""
    right_by: int = 0
    softcap: Callable[[np.ndarray, float], np.ndarray] | None = None
    """Replacement of ``softcap * tanh(logits / softcap)``."""
    scores: Callable[[np.ndarray], np.ndarray] = lambda scores: scores
    """Transformation of the products of Q and K, before they are scaled."""
    scale: float = 1.0
    softmax_scale: Callable[[AttentionInputs], float] | None = None
    """Replacement of the call's softmax scale."""
    sink: Callable[[np.ndarray], np.ndarray] = lambda sinks: sinks
    """Transformation of the sinks' natural logits."""
    lse: Callable[[np.ndarray], np.ndarray] = lambda lse: lse
    """Transformation of the resulting natural log-sum-exp."""
    diagonal: Callable[[Problem, int, int], int] = lambda _problem, queries, keys: keys - queries
    """Key on the diagonal of a sequence's first row."""
    maximum: Callable[[np.ndarray, np.ndarray, int], np.ndarray] = lambda top, own, _tile: np.maximum(top, own)
    """Running maximum, from that of the tiles before, a tile's own, and its number."""
    rescale: bool = True
    """Whether running sums are rescaled when the maximum grows."""
    subtract: bool = True
    """Whether the maximum is subtracted before the exponential."""
    top_of_hidden: bool = False
    """Whether hidden keys count for the maximum."""
    weights: Callable[[np.ndarray], np.ndarray] = lambda weights: weights
    """Transformation of the weights of a tile, relative to the running maximum."""
    flush: bool = False
    """Whether fp16 subnormals are flushed to zero."""
    fp16: bool = False
    """Whether values pass through fp16."""
    narrow: bool = False
    """Whether O is accumulated in the dtype."""
    skip: Callable[[int, int], bool] = lambda _sequence, _tile: False
    """Predicate of (sequence, tile) for key tiles to skip."""
    neighbours: int = 0
    """Number of keys past the end of a sequence that are read, if there are any."""
    o: Callable[[np.ndarray], np.ndarray] = lambda o: o
    """Transformation of the resulting O."""


RIGHT = Mistake()


class NumPyKernel:
    """Loaded kernel that computes attention on the host.

    Args:
        mistake: Mistakes of the kernel.
        tile: Keys per tile.
        fault_at: Predicate of inputs on which the kernel faults.
    """

    def __init__(
        self, mistake: Mistake = RIGHT, tile: int = 32, fault_at: Callable[[AttentionInputs], bool] = lambda _: False
    ) -> None:
        self._mistake = mistake
        self._tile = tile
        self._fault_at = fault_at
        self.ran: list[Problem] = []

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        problem = inputs.problem
        self.ran.append(problem)
        if self._fault_at is not None and self._fault_at(inputs):
            raise LaunchError("illegal address")
        self._scale = (
            inputs.softmax_scale if self._mistake.softmax_scale is None else self._mistake.softmax_scale(inputs)
        )
        with np.errstate(all="ignore"):
            return self._attention(inputs, problem)

    def _attention(self, inputs: AttentionInputs, problem: Problem) -> AttentionOutput:
        q, k, v = (self._values(bits, problem) for bits in (inputs.q, inputs.k, inputs.v))
        o = np.zeros(inputs.output_shape, F32)
        lse = np.full(inputs.lse_shape, -np.inf, F32)
        group = problem.heads // problem.kv_heads
        first_row = first_key = 0
        for sequence, (queries, keys) in enumerate(problem.sequences):
            batch = 0 if problem.packed else sequence
            rows = slice(first_row, first_row + queries)
            stretch = slice(first_key, first_key + keys + self._mistake.neighbours)
            for head in range(problem.heads):
                sink = None if inputs.sink is None else self._mistake.sink(inputs.sink)[head]
                k_head, v_head = k[batch, head // group, stretch], v[batch, head // group, stretch]
                o[batch, head, rows], lse[batch, head, rows] = self._head(
                    problem, sequence, q[batch, head, rows], k_head, v_head, keys, sink
                )
            if problem.packed:
                first_row, first_key = first_row + queries, first_key + keys
        bits = to_bits(self._mistake.o(o).astype(F32), problem.dtype)
        return AttentionOutput(bits, self._mistake.lse(lse).astype(F32) if problem.lse else None)

    def close(self) -> None:
        pass

    def _values(self, bits: np.ndarray, problem: Problem) -> np.ndarray:
        values = from_bits(bits, problem.dtype).astype(F32)
        values = values.astype(np.float16).astype(F32) if self._mistake.fp16 else values
        return np.where(np.abs(values) < 2.0**-14, F32(0), values) if self._mistake.flush else values

    def _head(
        self, problem: Problem, sequence: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, keys: int, sink: F32 | None
    ) -> tuple[np.ndarray, np.ndarray]:
        mistake, rows = self._mistake, len(q)
        seen = self._seen(problem, rows, keys, len(k))
        top, total, o = np.full(rows, -np.inf, F32), np.zeros(rows, F32), np.zeros_like(q)
        for tile, start in enumerate(range(0, len(k), self._tile)):
            part = slice(start, start + self._tile)
            all_logits = self._logits(problem, q @ k[part].T)
            logits = np.where(seen[:, part], all_logits, F32(-np.inf))
            if mistake.skip(sequence, tile) or not seen[:, part].any():
                continue
            new_top = mistake.maximum(top, (all_logits if mistake.top_of_hidden else logits).max(axis=1), tile)
            base = np.where(np.isfinite(new_top) & mistake.subtract, new_top, F32(0))
            keep = np.exp2(top - base) if mistake.rescale and mistake.subtract else np.isfinite(top).astype(F32)
            weights = mistake.weights(np.exp2(logits - base[:, None]))
            total = total * keep + weights.sum(axis=1, dtype=F32)
            o = o * keep[:, None] + round_to(weights, problem.dtype).astype(F32) @ v[part]
            o = round_to(o, problem.dtype).astype(F32) if mistake.narrow else o
            top = new_top if mistake.subtract else np.zeros_like(top)
        if sink is not None:
            new_top = np.maximum(top, F32(sink) * LOG2E)
            base = np.where(np.isneginf(new_top), F32(0), new_top)
            keep = np.exp2(top - base)
            total, o = total * keep + np.exp2(F32(sink) * LOG2E - base), o * keep[:, None]
            top = new_top
        some = total > 0
        lse = np.where(some, (top + np.log2(np.where(some, total, F32(1)))) * LN2, F32(-np.inf))
        return o / np.where(some, total, F32(1))[:, None], lse

    def _logits(self, problem: Problem, scores: np.ndarray) -> np.ndarray:
        """Computes logits in base 2."""
        mistake, cap = self._mistake, F32(problem.softcap)
        scaled = mistake.scores(scores) * F32(self._scale * mistake.scale)
        if not problem.softcap:
            return scaled * LOG2E
        if mistake.softcap is not None:
            capped = mistake.softcap(scaled, problem.softcap)
        else:
            capped = np.tanh(scaled / cap).astype(np.float16) * cap  # 11 bits, like tanh.approx
        return np.asarray(capped, F32) * LOG2E

    def _seen(self, problem: Problem, queries: int, keys: int, held: int) -> np.ndarray:
        """Computes the mask from its definition, row by row."""
        mistake, seen = self._mistake, np.zeros((queries, held), np.bool_)
        right = 0 if problem.causal else problem.window_right
        for row in range(queries):
            diagonal = row + mistake.diagonal(problem, queries, keys)
            low = 0 if problem.window_left is None else diagonal - problem.window_left - mistake.left_by
            high = held - 1 if right is None else diagonal + right + mistake.right_by
            seen[row, max(0, low) : max(0, min(held, high + 1))] = True
        return seen
