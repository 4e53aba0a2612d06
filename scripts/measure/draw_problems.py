#!/usr/bin/env python3
"""Draws attention problems at random that no fit has used, and prints the options of `search` for each.

    python scripts/measure/draw_problems.py --seed 20261127 --count 9
    python scripts/measure/draw_problems.py --seed 20261203 --count 9 --wide

Sizes are those of usual models and some that no tile divides. Problems of the half that is judged are kept
(foresight.is_judged), as long as their work is between 0.2 and 40 GFLOP; decode problems of any size. With --wide, each
has one of these: a window, packed sequences, a part of a prompt after earlier keys, many sequences that decode, a bound
on the logits, a long context, a few queries; and work of up to 200 GFLOP.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
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
WIDE_KINDS: Final = ("window", "packed", "chunk", "decode", "softcap", "long", "few")
WIDE_FLOPS: Final = 2e11
WINDOWS: Final = (64, 128, 255, 256, 512, 1000, 1024)
LONG_LENGTHS: Final = (1024, 2048, 2900, 4096, 4097, 6000, 8192)
MANY_SEQUENCES: Final = (16, 24, 32, 48, 64)


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--seed", type=int, required=True, help="Seed of the random numbers.")
    parser.add_argument("--count", type=int, default=9, help="Number of problems.")
    parser.add_argument("--wide", action="store_true", help="Draw windows, packed sequences and other kinds, too.")
    arguments = parser.parse_args()
    source = widely_drawn if arguments.wide else drawn
    judged = (problem for problem in source(arguments.seed) if is_judged(problem))
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


def widely_drawn(seed: int) -> Iterator[Problem]:
    """Yields problems of the kinds that ``drawn`` lacks, one kind after the other, without an end."""
    rng = random.Random(seed)
    base = drawn(seed)
    while True:
        for kind in WIDE_KINDS:
            problem = _widened(next(base), kind, rng)
            while not (is_judged(problem) and FLOPS[0] < _visible_flops(problem) < WIDE_FLOPS):
                problem = _widened(next(base), kind, rng)
            yield problem


def _widened(problem: Problem, kind: str, rng: random.Random) -> Problem:
    """One property more for a drawn problem; sizes of which the kind consists are drawn anew."""
    length, many = rng.choice(LONG_LENGTHS), rng.choice(MANY_SEQUENCES)
    plain = replace(problem, causal=False, seq_kv=problem.seq_q)
    match kind:
        case "window":
            side = rng.choice(WINDOWS)
            both = rng.random() < 0.5
            return replace(plain, seq_q=length, seq_kv=length, window_left=side, window_right=side if both else 0)
        case "softcap":
            return replace(plain, causal=rng.random() < 0.5, softcap=rng.choice((15.0, 30.0, 50.0)))
        case "packed":
            lengths = tuple(rng.choice(LENGTHS) for _ in range(rng.choice((3, 4, 6, 9))))
            sizes = {"batch": len(lengths), "seq_q": max(lengths), "seq_kv": max(lengths)}
            return replace(plain, **sizes, lengths_q=lengths, causal=rng.random() < 0.5)
        case "chunk":
            queries = rng.choice((64, 128, 200, 256, 512))
            return replace(plain, seq_q=queries, seq_kv=queries + length, causal=True)
        case "few":
            return replace(plain, seq_q=rng.choice((2, 3, 4, 5, 8, 16)), seq_kv=length, causal=True)
        case "decode":
            kv_heads = rng.choice([k for k in (1, 2, 4, 8) if problem.heads % k == 0])
            return replace(plain, batch=many, seq_q=1, seq_kv=rng.choice(LENGTHS), kv_heads=kv_heads)
        case _:
            return replace(plain, batch=1, seq_q=length, seq_kv=length, causal=rng.random() < 0.5)


def _visible_flops(problem: Problem) -> float:
    """Operations on visible keys, roughly: windows and causal masks are counted, the edges of windows are not."""
    lengths = zip(problem.lengths_q, problem.lengths_kv, strict=True)
    pairs = sum(q * k for q, k in lengths) if problem.packed else problem.batch * problem.seq_q * problem.seq_kv
    if problem.window_left is not None:
        width = problem.window_left + (0 if problem.causal else problem.window_right or 0) + 1
        pairs = problem.batch * problem.seq_q * min(width, problem.seq_kv)
    elif problem.causal and problem.seq_q == problem.seq_kv:
        pairs //= 2
    return 4.0 * problem.heads * pairs * problem.head_dim


if __name__ == "__main__":
    common.run(main)
