"""The attention problem: sizes, element type, masks and features of one forward pass."""

from __future__ import annotations

import enum
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from evoengine.errors import ProblemError


class DType(enum.Enum):
    """Element type of Q, K, V and O."""

    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 2


@dataclass(frozen=True)
class Problem:
    """One attention forward pass, the object of a search.

    Q is ``[batch, heads, seq_q, head_dim]``, K and V are ``[batch, kv_heads, seq_kv, head_dim]``. Row ``i`` has its
    diagonal at key ``d = i + seq_kv - seq_q`` (bottom-right alignment) and attends to the keys from ``d - window_left``
    to ``d + window_right``; a causal mask is ``window_right = 0``. A row without any visible key yields zeros.

    The logits are ``softmax_scale * Q Kᵀ``, or ``softcap * tanh(softmax_scale * Q Kᵀ / softcap)``. With a sink, each
    query head has one extra softmax logit, given by the caller, that contributes no value to O. The log-sum-exp of a
    row covers all its logits, including the sink; it is -inf for a row without any.

    With ``lengths_q`` the sequences differ in length and are packed one after the other: Q is
    ``[1, heads, sum(lengths_q), head_dim]``, K and V are ``[1, kv_heads, sum(lengths_kv), head_dim]``. ``batch`` is
    then the number of sequences, ``seq_q`` and ``seq_kv`` are their maximum lengths, and a row's diagonal follows from
    the lengths of its own sequence.

    Raises:
        ProblemError: A size is out of range, or properties contradict each other.
    """

    batch: int
    heads: int
    seq_q: int
    head_dim: int
    kv_heads: int = 0
    """0 is replaced by ``heads``."""
    seq_kv: int = 0
    """0 is replaced by ``seq_q``."""
    dtype: DType = DType.FP16
    causal: bool = False
    window_left: int | None = None
    """Visible keys before a row's diagonal; None for no limit."""
    window_right: int | None = None
    """Visible keys after a row's diagonal; None for no limit. 0 is replaced by ``causal``."""
    softcap: float = 0.0
    """Bound on the logits, applied with tanh; 0 for none."""
    sink: bool = False
    lse: bool = False
    """Whether the log-sum-exp of each row is a second output."""
    lengths_q: tuple[int, ...] = ()
    """Query lengths of packed sequences; empty if all have the length ``seq_q``."""
    lengths_kv: tuple[int, ...] = ()
    """Key lengths of packed sequences; empty is replaced by ``lengths_q``."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.seq_kv == 0:
            object.__setattr__(self, "seq_kv", self.seq_q)
        if self.causal and self.window_right:
            raise ProblemError(
                f"a causal mask hides all keys after the diagonal: window_right cannot be {self.window_right}"
            )
        if self.window_right == 0:
            object.__setattr__(self, "causal", True)
            object.__setattr__(self, "window_right", None)
        if self.lengths_q and not self.lengths_kv:
            object.__setattr__(self, "lengths_kv", self.lengths_q)
        self._check_sizes()
        self._check_lengths()

    def _check_types(self) -> None:
        """Checks the types of fields, because a problem may also be made by a user's program or from a file."""
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "window_left", "window_right"):
            size = getattr(self, name)
            if type(size) is not int and not (size is None and name in ("window_left", "window_right")):
                raise ProblemError(f"{name} must be an int, not a {type(size).__name__}")
        for name in ("causal", "sink", "lse"):
            if type(getattr(self, name)) is not bool:
                raise ProblemError(f"{name} must be True or False, not a {type(getattr(self, name)).__name__}")
        if not isinstance(self.dtype, DType):
            raise ProblemError(f"dtype must be a DType such as DType.FP16, not a {type(self.dtype).__name__}")
        if type(self.softcap) not in (float, int):
            raise ProblemError(f"softcap must be a float, not a {type(self.softcap).__name__}")
        for name in ("lengths_q", "lengths_kv"):
            lengths = getattr(self, name)
            if type(lengths) is not tuple or any(type(length) is not int for length in lengths):
                raise ProblemError(f"{name} must be a tuple of ints, such as (512, 384)")

    def _check_sizes(self) -> None:
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim"):
            if not 1 <= getattr(self, name) < _LARGEST_SIZE:
                raise ProblemError(f"{name} must be at least 1 and below 2^31, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ProblemError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        for name in ("window_left", "window_right"):
            size = getattr(self, name)
            if size is not None and not 0 <= size < _WIDEST_WINDOW:
                raise ProblemError(f"{name} must be at least 0 and below 2^30, not {size}")
        if not 0 <= self.softcap <= sys.float_info.max:
            raise ProblemError(f"softcap must be a positive number, or 0 for none, not {self.softcap}")

    def _check_lengths(self) -> None:
        if not self.lengths_q and not self.lengths_kv:
            return
        if len(self.lengths_q) != self.batch or len(self.lengths_kv) != self.batch:
            raise ProblemError(
                f"{self.batch} packed sequences need as many lengths, not {len(self.lengths_q)} for Q and "
                f"{len(self.lengths_kv)} for K and V"
            )
        if min(self.lengths_q + self.lengths_kv) < 0:
            raise ProblemError("a packed sequence cannot have a negative length")
        for name, lengths in (("seq_q", self.lengths_q), ("seq_kv", self.lengths_kv)):
            if max(lengths) != getattr(self, name):
                raise ProblemError(f"{name} is {getattr(self, name)}, but the longest packed one is {max(lengths)}")

    @property
    def packed(self) -> bool:
        """Whether sequences of different lengths are packed."""
        return bool(self.lengths_q)

    @property
    def memory_batch(self) -> int:
        """Size of the batch axis in memory: 1 for packed sequences."""
        return 1 if self.packed else self.batch

    @property
    def rows_q(self) -> int:
        """Size of the row axis of Q and O in memory."""
        return sum(self.lengths_q) if self.packed else self.seq_q

    @property
    def rows_kv(self) -> int:
        """Size of the row axis of K and V in memory."""
        return sum(self.lengths_kv) if self.packed else self.seq_kv

    @property
    def masked(self) -> bool:
        """Whether a mask hides keys."""
        return self.causal or self.window_left is not None or self.window_right is not None

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """``(queries, keys)`` of each sequence of the batch."""
        if self.packed:
            return tuple(zip(self.lengths_q, self.lengths_kv, strict=True))
        return ((self.seq_q, self.seq_kv),) * self.batch

    @property
    def sequence_counts(self) -> Mapping[tuple[int, int], int]:
        """Number of sequences by ``(queries, keys)``: unlike :attr:`sequences` short for a batch of any size."""
        return Counter(self.sequences) if self.packed else {(self.seq_q, self.seq_kv): self.batch}

    @property
    def pairs(self) -> int:
        """Number of (row, key) pairs of one head over all sequences, hidden ones included."""
        return sum(count * queries * keys for (queries, keys), count in self.sequence_counts.items())

    @cached_property
    def shape_key(self) -> str:
        """The part of :attr:`key` that names the sizes: ``1x8x512x64``, ``8x32x1x128-kv8-skv4096``."""
        parts = [f"{self.batch}x{self.heads}x{self.seq_q}x{self.head_dim}"]
        if self.kv_heads != self.heads:
            parts.append(f"kv{self.kv_heads}")
        if self.seq_kv != self.seq_q:
            parts.append(f"skv{self.seq_kv}")
        if self.packed:
            parts.append(f"packed{_lengths_key(self.lengths_q, self.lengths_kv)}")
        return "-".join(parts)

    @cached_property
    def key(self) -> str:
        """Canonical name and identity in the leaderboard: ``1x8x512x64-fp16``, ``…-kv2-skv4096-fp16-causal``."""
        parts = [self.shape_key, self.dtype.value]
        if self.causal:
            parts.append("causal")
        if self.window_left is not None:
            parts.append(f"left{self.window_left}")
        if self.window_right is not None:
            parts.append(f"right{self.window_right}")
        if self.softcap:
            parts.append(f"cap{str(self.softcap).removesuffix('.0')}")
        parts += [name for name, on in (("sink", self.sink), ("lse", self.lse)) if on]
        return "-".join(parts)

    @property
    def softmax_scale(self) -> float:
        """Factor on QKᵀ: ``1/sqrt(head_dim)``."""
        return float(self.head_dim**-0.5)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations by FlashAttention's convention: two for each multiply-add.

        A causal mask halves them, whatever the lengths; with a window only the visible pairs count.
        """
        per_pair = 4 * self.heads * self.head_dim
        if self.window_left is not None or self.window_right is not None:
            return per_pair * self.seen_pairs
        full = per_pair * self.pairs
        return full // 2 if self.causal else full

    def seen_keys(self, row: int, queries: int, keys: int) -> tuple[int, int]:
        """Returns the range ``[first, end)`` of keys visible to a row; ``end <= first`` if there are none."""
        diagonal = row + keys - queries
        right = 0 if self.causal else self.window_right
        first = 0 if self.window_left is None else max(0, diagonal - self.window_left)
        return first, keys if right is None else min(keys, diagonal + right + 1)

    @cached_property
    def seen_pairs(self) -> int:
        """Number of (row, visible key) pairs of one head over all sequences."""
        return sum(count * self._seen_pairs(*lengths) for lengths, count in self.sequence_counts.items())

    def _seen_pairs(self, queries: int, keys: int) -> int:
        if not self.masked:
            return queries * keys
        right = 0 if self.causal else self.window_right
        # The number of visible keys is linear in the row between the rows where an end of the window is clipped.
        ends = [queries - keys + (self.window_left or 0), queries - 1 - (right or 0), queries - keys - 1 - (right or 0)]
        cuts = sorted({0, queries, *(min(max(row + step, 0), queries) for row in ends for step in (0, 1))})
        return sum(
            (self._seen(a, queries, keys) + self._seen(b - 1, queries, keys)) * (b - a) // 2 for a, b in pairwise(cuts)
        )

    def _seen(self, row: int, queries: int, keys: int) -> int:
        first, end = self.seen_keys(row, queries, keys)
        return max(0, end - first)

    @property
    def min_bytes(self) -> int:
        """Least memory traffic in bytes: Q, K and V read once, O written once."""
        q_and_o = 2 * self.memory_batch * self.heads * self.rows_q * self.head_dim
        k_and_v = 2 * self.memory_batch * self.kv_heads * self.rows_kv * self.head_dim
        lse = 4 * self.memory_batch * self.heads * self.rows_q if self.lse else 0
        return (q_and_o + k_and_v) * self.dtype.bytes + lse


_LARGEST_SIZE: Final = 2**31
"""Exclusive limit of a size: kernels count in 32 bits."""
_WIDEST_WINDOW: Final = 2**30
"""Exclusive limit of a window size: kernels add it to row numbers in 32 bits."""

_SHORT_LENGTHS: Final = 4
"""Most lengths that a key lists; a longer list is replaced by its hash."""


def _lengths_key(lengths_q: tuple[int, ...], lengths_kv: tuple[int, ...]) -> str:
    same = lengths_q == lengths_kv
    if len(lengths_q) <= _SHORT_LENGTHS:
        texts = [".".join(map(str, lengths)) for lengths in ((lengths_q,) if same else (lengths_q, lengths_kv))]
        return "_".join(texts)
    digest = hashlib.sha256(json.dumps([lengths_q, lengths_kv]).encode()).hexdigest()[:8]
    return f"{sum(lengths_q)}_{digest}" if same else f"{sum(lengths_q)}_{sum(lengths_kv)}_{digest}"
