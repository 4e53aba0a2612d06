"""One call of a kernel: its inputs in memory layout, its output, and its predicted latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.abi import LARGEST_SCALE
from evoengine.kernel.memory_layout import DENSE, AxisOrder, Bits, CallLayout, Shape
from evoengine.model import Problem

Logits = NDArray[np.float32]
"""Sink logits ``[heads]``, or a log-sum-exp ``[batch, heads, seq_q]``: natural logarithm, f32."""

LSE_POISON_BITS: Final = 0x7FC0BAD0
"""NaN in f32 that fills a log-sum-exp before a launch."""


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """Q, K and V of one attention call in memory layout. Build it with :meth:`of`.

    The arrays are flat buffers in memory order, gaps included, so that pickling keeps the layout. The properties ``q``,
    ``k`` and ``v`` are logical ``[batch, heads, seq, head_dim]`` views. With packed sequences the batch axis is 1 and
    the seq axis holds all rows.
    """

    problem: Problem
    q_memory: Bits
    k_memory: Bits
    v_memory: Bits
    layout: CallLayout = DENSE
    sink: Logits | None = None
    """Sink logits ``[heads]`` if the problem has a sink."""
    scale: float | None = None
    """Factor on QKᵀ; None for the problem's ``1/sqrt(head_dim)``."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        q: Bits,
        k: Bits,
        v: Bits,
        layout: AxisOrder | CallLayout = "bhsd",
        sink: Logits | None = None,
        scale: float | None = None,
    ) -> AttentionInputs:
        """Converts logical arrays to a memory layout.

        Args:
            problem: Problem that the arrays belong to.
            q: uint16 bit patterns ``[memory_batch, heads, rows_q, head_dim]``.
            k: uint16 bit patterns ``[memory_batch, kv_heads, rows_kv, head_dim]``.
            v: Array of the same shape as ``k``.
            layout: Layouts in memory; an axis order stands for four dense tensors of that order.
            sink: float32 logits ``[heads]`` if the problem has a sink, otherwise None.
            scale: Factor on QKᵀ; None for the problem's own.

        Raises:
            ValueError: A shape does not match the problem, elements have the wrong type, or the scale is too large.
        """
        want_q = (problem.memory_batch, problem.heads, problem.rows_q, problem.head_dim)
        want_kv = (problem.memory_batch, problem.kv_heads, problem.rows_kv, problem.head_dim)
        for name, array, want in (("q", q, want_q), ("k", k, want_kv), ("v", v, want_kv)):
            if array.shape != want or array.dtype != np.uint16:
                raise ValueError(f"{name} must be uint16 {want}, not {array.dtype} {array.shape}")
        if (sink is not None) != problem.sink:
            raise ValueError(f"sink logits must {'' if problem.sink else 'not '}be given for problem {problem.key}")
        if sink is not None and (sink.shape != (problem.heads,) or sink.dtype != np.float32):
            raise ValueError(f"sink must be float32 ({problem.heads},), not {sink.dtype} {sink.shape}")
        if scale is not None and not abs(scale) <= LARGEST_SCALE:
            raise ValueError(f"scale must be a finite number of at most 2^127 in magnitude, not {scale}")
        if isinstance(layout, str):
            layout = CallLayout.dense(layout)
        return cls(problem, layout.q.place(q), layout.k.place(k), layout.v.place(v), layout, sink, scale)

    @property
    def q(self) -> Bits:
        """Logical view ``[batch, heads, seq_q, head_dim]``."""
        return self.layout.q.view(self.q_memory, self.output_shape)

    @property
    def k(self) -> Bits:
        """Logical view ``[batch, kv_heads, seq_kv, head_dim]``."""
        return self.layout.k.view(self.k_memory, self.kv_shape)

    @property
    def v(self) -> Bits:
        """Logical view ``[batch, kv_heads, seq_kv, head_dim]``."""
        return self.layout.v.view(self.v_memory, self.kv_shape)

    @property
    def softmax_scale(self) -> float:
        """Factor on QKᵀ."""
        return self.problem.softmax_scale if self.scale is None else self.scale

    @property
    def output_shape(self) -> Shape:
        """Logical shape of Q and O: ``(memory_batch, heads, rows_q, head_dim)``."""
        p = self.problem
        return p.memory_batch, p.heads, p.rows_q, p.head_dim

    @property
    def kv_shape(self) -> Shape:
        """Logical shape of K and V: ``(memory_batch, kv_heads, rows_kv, head_dim)``."""
        p = self.problem
        return p.memory_batch, p.kv_heads, p.rows_kv, p.head_dim

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp in every layout: ``(memory_batch, heads, rows_q)``."""
        return self.output_shape[:3]

    @property
    def cu_seqlens_q(self) -> NDArray[np.int32]:
        """First query row of each packed sequence and the end of the last one: ``[batch + 1]``."""
        return _offsets(self.problem.lengths_q)

    @property
    def cu_seqlens_kv(self) -> NDArray[np.int32]:
        """First key row of each packed sequence and the end of the last one: ``[batch + 1]``."""
        return _offsets(self.problem.lengths_kv)

    def logical_output(self, memory: Bits) -> Bits:
        """Returns the logical view of O's buffer."""
        return self.layout.o.view(memory, self.output_shape)


def _offsets(lengths: tuple[int, ...]) -> NDArray[np.int32]:
    return np.cumsum((0, *lengths), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """Outputs of one call."""

    o: Bits
    """uint16 bit patterns ``[memory_batch, heads, rows_q, head_dim]``, a logical view."""
    lse: Logits | None = None
    """Log-sum-exp ``[memory_batch, heads, rows_q]``, if it is an output of the problem."""


@dataclass(frozen=True)
class Prediction:
    """Latency that a model predicts for one problem."""

    us: float
    method: str
    terms: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the estimate, in microseconds unless the name states another unit."""
