"""Variations of a call's inputs whose results follow from those of the call, without computing them again.

Attention has symmetries that are exact in floating point: the signs of one column of Q and K cancel, the signs of a
column of V change those of O, and heads and sequences may change places. A random combination of these yields new
inputs with a known expected output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs, AttentionOutput, Logits
from evoengine.kernel.memory_layout import Bits
from evoengine.model import DType

_SIGN: Final = np.uint16(0x8000)
_MOST_DIFFERENCE: Final = 1e-3
"""Largest difference of a variation's result, relative in the L2 norm: results need not repeat bit for bit, because
tensor cores may round sums of either sign differently."""


@dataclass(frozen=True, eq=False)
class Variation:
    """One variation; :func:`draw_variation` draws it. Its arrays are NumPy's, or CuPy's after :meth:`on`."""

    batches: NDArray[np.intp]
    """Sequence that each place of the batch axis takes."""
    heads: NDArray[np.intp]
    """Query head that each place takes; query heads of one key/value head stay together."""
    groups: NDArray[np.intp]
    """Key/value head that each place takes."""
    qk_signs: Bits
    """Sign bits of the columns of Q and K ``[head_dim]``."""
    v_signs: Bits
    """Sign bits of the columns of V and O ``[head_dim]``."""

    def on(self, module: Any) -> Variation:
        """Returns the variation with arrays of an array module, NumPy or CuPy."""
        return Variation(**{name: module.asarray(array) for name, array in vars(self).items()})

    def tensors(self, q: Bits, k: Bits, v: Bits) -> tuple[Bits, Bits, Bits]:
        """Returns varied copies of logical tensors ``[batch, heads, seq, head_dim]``."""
        return (
            q[self.batches][:, self.heads] ^ self.qk_signs,
            k[self.batches][:, self.groups] ^ self.qk_signs,
            v[self.batches][:, self.groups] ^ self.v_signs,
        )

    def sink(self, base: Logits | None) -> Logits | None:
        """Returns the varied sink logits ``[heads]``."""
        return None if base is None else base[self.heads]

    def inputs(self, base: AttentionInputs) -> AttentionInputs:
        """Returns the varied inputs of a call, in the same layout."""
        q, k, v = self.tensors(base.q, base.k, base.v)
        return AttentionInputs.of(base.problem, q, k, v, base.layout, self.sink(base.sink), base.scale)

    def output(self, base: AttentionOutput) -> AttentionOutput:
        """Returns the expected output, given that of the unvaried call."""
        lse = None if base.lse is None else base.lse[self.batches][:, self.heads]
        return AttentionOutput(base.o[self.batches][:, self.heads] ^ self.v_signs, lse)


def draw_variation(base: AttentionInputs, rng: np.random.Generator) -> Variation:
    """Draws a random variation of a call's inputs; packed sequences keep their places, because their lengths differ."""
    batch, kv_heads, _, columns = base.kv_shape
    groups, per_group = rng.permutation(kv_heads), base.problem.heads // kv_heads
    return Variation(
        batches=rng.permutation(batch) if not base.problem.packed else np.arange(batch),
        heads=(groups[:, None] * per_group + np.arange(per_group)).reshape(-1),
        groups=groups,
        qk_signs=_SIGN * rng.integers(0, 2, columns, np.uint16),
        v_signs=_SIGN * rng.integers(0, 2, columns, np.uint16),
    )


def difference(output: AttentionOutput, expected: AttentionOutput, dtype: DType) -> str:
    """Describes by how much an output differs from the expected one; empty if the difference is rounding.

    Both hold NumPy's arrays, or both CuPy's.
    """
    pairs = [("O", _values(output.o, dtype), _values(expected.o, dtype))]
    if output.lse is not None and expected.lse is not None:
        pairs.append(("LSE", output.lse, expected.lse))
    for name, got, want in pairs:
        equal = (got == want) | (np.isnan(got) & np.isnan(want))
        if equal.all():
            continue
        if not (np.isfinite(got[~equal]).all() and np.isfinite(want[~equal]).all()):
            return f"{int((~equal).sum())} elements of {name} are not those expected, and some are not finite"
        norm = float(np.linalg.norm(np.where(np.isfinite(want), want, 0.0)))
        change = float(np.linalg.norm(np.where(equal, 0.0, got - want)))
        if change > _MOST_DIFFERENCE * norm:
            return f"{name} differs by {change / norm if norm else float('inf'):.2g} in the L2 norm"
    return ""


def _values(bits: Bits, dtype: DType) -> NDArray[np.float32]:
    if dtype is DType.FP16:
        values: NDArray[np.float32] = bits.view(np.float16).astype(np.float32)
        return values
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
