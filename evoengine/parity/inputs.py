"""Seeded inputs. A profile is one small function; adding one is one entry in :data:`PROFILES`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs, Layout
from evoengine.model import Problem
from evoengine.parity.bits import to_bits

Floats = NDArray[np.float32]
QKV = tuple[Floats, Floats, Floats]
Profile = Callable[[Floats, Floats, Floats], QKV]
"""Turns independent standard normal Q, K, V into the inputs of one kind of case."""

PROFILES: Final[Mapping[str, Profile]] = {
    "normal": lambda q, k, v: (q, k, v),
    "peaky": lambda q, k, v: (4 * q, k, v),  # a few keys win, and the running maximum moves late: shows a lost rescale
    "offset": lambda q, k, v: (q + 0.5, k + 0.5, v + 0.5),  # a mean that cancels nowhere: shows dropped or doubled keys
}


def make_inputs(problem: Problem, profile: str, seed: int, layout: Layout = "bhsd") -> AttentionInputs:
    """Draws Q, K and V of one problem.

    Args:
        problem: the shape and dtype.
        profile: a key of :data:`PROFILES`.
        seed: the same seed, problem and profile give the same bits everywhere.
        layout: order of the axes in memory.
    """
    rng = np.random.default_rng([seed, zlib.crc32(f"{problem.key}/{profile}".encode())])
    shape_q = (problem.batch, problem.heads, problem.seq_q, problem.head_dim)
    shape_kv = (problem.batch, problem.kv_heads, problem.seq_kv, problem.head_dim)
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in (shape_q, shape_kv, shape_kv))
    q_bits, k_bits, v_bits = (to_bits(array, problem.dtype) for array in PROFILES[profile](q, k, v))
    return AttentionInputs.of(problem, q_bits, k_bits, v_bits, layout)
