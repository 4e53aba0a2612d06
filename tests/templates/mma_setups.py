"""Problem and layout shared by the tests of the mma family, in addition to the setups of its mutants."""

from __future__ import annotations

from collections.abc import Mapping

from evoengine.model import DType, Problem, Value

EVERYTHING = Problem(
    2, 4, 40, 88, kv_heads=2, seq_kv=130, dtype=DType.BF16, window_left=60, window_right=3, softcap=8.0, sink=True,
    lse=True, lengths_q=(40, 9), lengths_kv=(31, 130),
)  # fmt: skip

PADDED: Mapping[str, Value] = {"SMEM_LAYOUT": "padded", "PAD_HALVES": 8}
