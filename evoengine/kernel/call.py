"""One call of a kernel: its inputs as they lie in memory, and what a latency model says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.abi import Strides
from evoengine.model import Problem

Bits = NDArray[np.uint16]
"""Bit patterns of fp16 or bf16 elements; NumPy has no bf16, and bits are what a device sees."""

Layout = Literal["bhsd", "bshd"]
"""Order of the axes in memory: heads outside rows, or rows outside heads."""

POISON_BITS: Final = 0x7FED
"""The NaN that fills an output before a launch, in fp16 and in bf16: hardware makes 0x7FFF, never this payload."""


def memory_axes(layout: Layout) -> tuple[int, int, int, int]:
    """The permutation from logical ``[batch, heads, seq, head_dim]`` to memory order; it is its own inverse."""
    return (0, 1, 2, 3) if layout == "bhsd" else (0, 2, 1, 3)


def element_strides(shape: tuple[int, int, int, int], layout: Layout) -> Strides:
    """Element strides of (batch, head, row) for a logical ``[batch, heads, seq, head_dim]`` tensor held in a layout."""
    _, heads, seq, dim = shape
    if layout == "bhsd":
        return heads * seq * dim, seq * dim, dim
    return seq * heads * dim, dim, heads * dim


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """Q, K and V of one attention call, as they lie in memory. Build it with :meth:`of`.

    The arrays are C-contiguous in the order that ``layout`` names (so that pickling keeps the layout); the properties
    ``q``, ``k``, ``v`` are the logical ``[batch, heads, seq, head_dim]`` views. The output uses the same layout.
    """

    problem: Problem
    q_memory: Bits
    k_memory: Bits
    v_memory: Bits
    layout: Layout = "bhsd"

    @classmethod
    def of(cls, problem: Problem, q: Bits, k: Bits, v: Bits, layout: Layout = "bhsd") -> AttentionInputs:
        """Takes logical arrays and lays them out.

        Args:
            problem: the shape that the arrays have.
            q: ``[batch, heads, seq_q, head_dim]``, uint16 bit patterns.
            k: ``[batch, kv_heads, seq_kv, head_dim]``.
            v: like ``k``.
            layout: order in memory.

        Raises:
            ValueError: a shape is not the problem's, or the elements are not uint16.
        """
        want_q = (problem.batch, problem.heads, problem.seq_q, problem.head_dim)
        want_kv = (problem.batch, problem.kv_heads, problem.seq_kv, problem.head_dim)
        for name, array, want in (("q", q, want_q), ("k", k, want_kv), ("v", v, want_kv)):
            if array.shape != want or array.dtype != np.uint16:
                raise ValueError(f"{name} must be uint16 {want}, not {array.dtype} {array.shape}")
        axes = memory_axes(layout)
        q_memory, k_memory, v_memory = (np.ascontiguousarray(array.transpose(axes)) for array in (q, k, v))
        return cls(problem, q_memory, k_memory, v_memory, layout)

    @property
    def q(self) -> Bits:
        """Logical view ``[batch, heads, seq_q, head_dim]``."""
        return self.q_memory.transpose(memory_axes(self.layout))

    @property
    def k(self) -> Bits:
        """Logical view ``[batch, kv_heads, seq_kv, head_dim]``."""
        return self.k_memory.transpose(memory_axes(self.layout))

    @property
    def v(self) -> Bits:
        """Logical view ``[batch, kv_heads, seq_kv, head_dim]``."""
        return self.v_memory.transpose(memory_axes(self.layout))

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Logical shape of O: ``[batch, heads, seq_q, head_dim]``."""
        p = self.problem
        return p.batch, p.heads, p.seq_q, p.head_dim

    @property
    def q_strides(self) -> Strides:
        """Element strides of Q and of O."""
        return element_strides(self.output_shape, self.layout)

    @property
    def kv_strides(self) -> Strides:
        """Element strides of K and of V."""
        p = self.problem
        return element_strides((p.batch, p.kv_heads, p.seq_kv, p.head_dim), self.layout)

    def logical_output(self, memory: Bits) -> Bits:
        """The logical view of an output buffer that has this layout."""
        axes = memory_axes(self.layout)
        shape = tuple(self.output_shape[axis] for axis in axes)
        return memory.reshape(shape).transpose(axes)


@dataclass(frozen=True)
class Prediction:
    """What a latency model says about one problem."""

    us: float
    method: str
    terms: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the estimate, in microseconds unless the name says otherwise."""
