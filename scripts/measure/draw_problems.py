#!/usr/bin/env python3
"""Draws attention problems at random that no fit has used, and prints the options of `search` for each.

    python scripts/measure/draw_problems.py --seed 20261127 --count 9

Sizes are those of usual models and some that no tile divides. Problems of the half that is judged are kept
(foresight.is_judged), as long as their work is between 0.2 and 40 GFLOP; decode problems of any size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import common
from foresight import is_judged

from evoengine.model import DType, Problem
from evoengine.report.command import problem_options

HEAD_DIMS: Final = (32, 40, 48, 56, 64, 64, 64, 72, 80, 96, 112, 128, 128, 128, 160, 192, 256)
KINDS: Final = ("self", "self", "self", "causal", "causal", "cross", "decode")
HEADS: Final = (4, 6, 8, 10, 12, 16, 20, 24, 32)
BATCHES: Final = (1, 1, 2, 2, 3, 4, 6, 8, 16)
SHORT: Final = (50, 64, 96, 128, 197, 200, 256, 333, 384, 512)
LENGTHS: Final = (*SHORT, 577, 640, 777, 1000, 1024, 1370, 1500, 2048, 2500, 3072)
CROSS_LENGTHS: Final = (77, 154, 256, 300, 700, 1500)
GROUPED_SHARE: Final = 0.4
"""Share of the problems whose heads share K/V heads, where their number allows it."""
FLOPS: Final = (2e8, 4e10)


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--seed", type=int, required=True, help="Seed of the random numbers.")
    parser.add_argument("--count", type=int, default=9, help="Number of problems.")
    arguments = parser.parse_args()
    judged = (problem for problem in drawn(arguments.seed) if is_judged(problem))
    for problem, _ in zip(judged, range(arguments.count), strict=False):
        print(problem.key, *filter(None, problem_options(problem)))
    return 0


def drawn(seed: int) -> Iterator[Problem]:
    """Yields problems without an end."""
    rng = random.Random(seed)
    while True:
        head_dim, kind, heads = rng.choice(HEAD_DIMS), rng.choice(KINDS), rng.choice(HEADS)
        kv_heads = heads // rng.choice((2, 4)) if heads % 4 == 0 and rng.random() < GROUPED_SHARE else heads
        batch, length = rng.choice(BATCHES), rng.choice(LENGTHS)
        seq_q = seq_kv = length
        if kind == "cross":
            seq_kv = rng.choice(CROSS_LENGTHS)
        if kind == "decode":
            seq_q, seq_kv = 1, length * rng.choice((1, 2, 4))
            kv_heads = heads // 4 if heads % 4 == 0 else heads
        dtype = DType(rng.choice(("fp16", "bf16")))
        flops = 4.0 * batch * heads * seq_q * seq_kv * head_dim / (2 if kind == "causal" else 1)
        if kind == "decode" or FLOPS[0] < flops < FLOPS[1]:
            yield Problem(
                *(batch, heads, seq_q, head_dim), kv_heads=kv_heads, seq_kv=seq_kv, causal=kind == "causal", dtype=dtype
            )


if __name__ == "__main__":
    common.run(main)
