"""Named problems, and the parser of problem texts such as ``1x8x512x64``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from evoengine.errors import ProblemError
from evoengine.model.problem import DType, Problem

_SHAPE: Final = re.compile(r"([0-9]{1,12})x([0-9]{1,12})x([0-9]{1,12})x([0-9]{1,12})")

NAMED_PROBLEMS: Final[Mapping[str, Problem]] = {
    "tiny": Problem(1, 1, 32, 64),
    "small": Problem(1, 2, 64, 64),
    "medium": Problem(1, 4, 128, 64),
    "default": Problem(1, 8, 512, 64),
    "multi_batch": Problem(4, 8, 256, 64),
    "short": Problem(1, 8, 256, 64),
    "long": Problem(1, 8, 1024, 64),
    "decode": Problem(8, 32, 1, 128, kv_heads=8, seq_kv=4096),
    "mission": Problem(1, 8, 512, 64),  # former name of "default"
}
"""Problems by name."""

DEFAULT_PROBLEM: Final = "default"
"""Name of the problem that is used when none is given."""


def parse_problem(
    text: str,
    *,
    kv_heads: int | None = None,
    seq_kv: int | None = None,
    dtype: DType = DType.FP16,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sink: bool = False,
    lse: bool = False,
    lengths_q: tuple[int, ...] = (),
    lengths_kv: tuple[int, ...] = (),
) -> Problem:
    """Parses a problem from ``BxHxSxD`` or a name of :data:`NAMED_PROBLEMS`, and adds the other properties.

    Args:
        text: Shape or name. For packed sequences, B is their number and S the length of the longest.
        kv_heads: Heads of K and V; None for those of the named problem, or for as many as Q has.
        seq_kv: Length of K and V; None for that of the named problem, or for the length of Q.
        dtype: Element type.
        causal: Whether the mask is causal.
        window: Visible keys before and after a row's diagonal; None for no limit.
        softcap: Bound on the logits; 0 for none.
        sink: Whether each head has an attention sink.
        lse: Whether the log-sum-exp is an output.
        lengths_q: Lengths of packed query sequences; empty for sequences of equal length.
        lengths_kv: Lengths of packed K/V sequences; empty for those of Q.

    Raises:
        ProblemError: The text is neither a shape nor a name, or the properties contradict each other.
    """
    match = _SHAPE.fullmatch(text)
    if match is None and text not in NAMED_PROBLEMS:
        names = ", ".join(NAMED_PROBLEMS)
        raise ProblemError(f"unknown problem '{text}': give BxHxSxD, for example 1x8x512x64, or one of {names}")
    for name, value in (("kv_heads", kv_heads), ("seq_kv", seq_kv)):
        if value is not None and value < 1:
            raise ProblemError(f"{name} must be at least 1, not {value}")
    shape = _shape(match, text, kv_heads, seq_kv)
    if lengths_kv and not lengths_q:
        raise ProblemError("lengths of K and V are given without those of Q: packed sequences need both")
    if lengths_q:
        shape = _packed_shape(shape, text, lengths_q, lengths_kv or lengths_q, seq_kv)
    left, right = window
    return replace(
        shape, dtype=dtype, causal=causal, window_left=left, window_right=right, softcap=softcap, sink=sink, lse=lse
    )


def _shape(match: re.Match[str] | None, text: str, kv_heads: int | None, seq_kv: int | None) -> Problem:
    if match is not None:
        batch, heads, seq, head_dim = map(int, match.groups())
        return Problem(batch, heads, seq, head_dim, kv_heads or 0, seq_kv or 0)
    named = NAMED_PROBLEMS[text]
    return replace(named, kv_heads=kv_heads or named.kv_heads, seq_kv=seq_kv or named.seq_kv)


def _packed_shape(
    shape: Problem, text: str, lengths_q: tuple[int, ...], lengths_kv: tuple[int, ...], seq_kv: int | None
) -> Problem:
    """Adds the lengths of packed sequences to a shape whose batch and length must match them.

    Raises:
        ProblemError: The batch is not the number of lengths, or the length not the longest of them.
    """
    if min(lengths_q) < 0 or max(lengths_q) < 1:
        raise ProblemError("lengths of packed sequences must be at least 0, and at least one must be positive")
    count, longest = len(lengths_q), max(lengths_q)
    if (shape.batch, shape.seq_q) != (count, longest):
        right = f"{count}x{shape.heads}x{longest}x{shape.head_dim}"
        raise ProblemError(
            f"problem '{text}' has batch {shape.batch} and length {shape.seq_q}, but {count} packed sequences of up to "
            f"{longest} rows are given: write {right}"
        )
    return replace(shape, seq_kv=seq_kv or max(lengths_kv), lengths_q=lengths_q, lengths_kv=lengths_kv)
