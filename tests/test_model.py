"""Problems: keys, validation, visible pairs, FLOPs and parsing; hashing of configs; evaluations of duplicates."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.errors import ProblemError
from evoengine.model import (
    NAMED_PROBLEMS,
    Config,
    DType,
    Evaluation,
    Problem,
    Status,
    Workload,
    WorkloadPart,
    executed_by_config,
    parse_problem,
)

PLAIN = Problem(2, 8, 100, 64)
PACKED = Problem(3, 8, 40, 64, lengths_q=(7, 40, 0), lengths_kv=(40, 9, 12))


@pytest.mark.parametrize(
    ("problem", "key"),
    [
        (Problem(1, 8, 512, 64), "1x8x512x64-fp16"),
        (
            Problem(1, 8, 512, 64, kv_heads=2, seq_kv=4096, dtype=DType.BF16, causal=True),
            "1x8x512x64-kv2-skv4096-bf16-causal",
        ),
        (replace(PLAIN, window_left=128, window_right=64), "2x8x100x64-fp16-left128-right64"),
        (replace(PLAIN, window_left=128, window_right=0), "2x8x100x64-fp16-causal-left128"),
        (replace(PLAIN, softcap=50.0, sink=True, lse=True), "2x8x100x64-fp16-cap50-sink-lse"),
        (replace(PLAIN, softcap=0.1234567891), "2x8x100x64-fp16-cap0.1234567891"),
        (PACKED, "3x8x40x64-packed7.40.0_40.9.12-fp16"),
        (NAMED_PROBLEMS["decode"], "8x32x1x128-kv8-skv4096-fp16"),
    ],
)
def test_keys(problem: Problem, key: str) -> None:
    assert problem.key == key
    assert key.startswith(problem.shape_key)


def test_keys_of_many_lengths_are_hashed() -> None:
    lengths = tuple(range(1, 9))
    problem = Problem(8, 1, 8, 16, lengths_q=lengths)
    assert problem.key != Problem(8, 1, 8, 16, lengths_q=lengths[::-1]).key
    assert len(problem.key) < 60


def test_window_right_of_zero_is_causal() -> None:
    assert replace(PLAIN, window_right=0) == replace(PLAIN, causal=True)
    assert pickle.loads(pickle.dumps(PACKED)) == PACKED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_left": -1}, "window_left "),
        ({"window_right": 2**30}, "below 2"),
        ({"window_right": 5, "causal": True}, "window_right .*5"),
        ({"softcap": -1.0}, "softcap"),
        ({"softcap": float("inf")}, "softcap"),
        ({"lengths_q": (100,)}, r"\b2 packed .*\b1\b"),
        ({"lengths_q": (100, -1)}, "negative"),
        ({"lengths_q": (99, 1)}, r"seq_q .*\b100\b.*\b99\b"),
        ({"lengths_q": (100, 1), "lengths_kv": (50, 1)}, r"seq_kv .*\b100\b.*\b50\b"),
        ({"kv_heads": 3}, "multiple"),
    ],
)
def test_invalid_problems_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        replace(PLAIN, **changes)  # type: ignore[arg-type]


def _seen(problem: Problem) -> int:
    """Counts visible pairs by the definition, pair by pair."""
    count = 0
    for queries, keys in problem.sequences:
        offset = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
        right = 0 if problem.causal else problem.window_right
        seen = np.ones(offset.shape, bool)
        if problem.window_left is not None:
            seen &= offset >= -problem.window_left
        if right is not None:
            seen &= offset <= right
        count += int(seen.sum())
    return count


@pytest.mark.parametrize(
    "problem",
    [
        PLAIN,
        replace(PLAIN, causal=True, seq_kv=30),
        replace(PLAIN, window_left=3, window_right=50, seq_kv=170),
        replace(PLAIN, window_left=9, causal=True),
        replace(PLAIN, window_right=4),
        PACKED,
        replace(PACKED, causal=True),
        replace(PACKED, window_left=5),
    ],
    ids=lambda problem: problem.key,
)
def test_seen_pairs_and_flops(problem: Problem) -> None:
    assert problem.seen_pairs == _seen(problem)
    counted = _seen(problem)
    if problem.causal and problem.window_left is None:
        counted = sum(queries * keys for queries, keys in problem.sequences) // 2
    assert problem.flops == 4 * problem.heads * problem.head_dim * counted


def test_the_work_of_a_huge_batch_is_computed_at_once() -> None:
    huge = Problem(2**31 - 1, 1, 32, 64, causal=True)  # as a leaderboard from elsewhere may state it
    assert huge.pairs == (2**31 - 1) * 32 * 32
    assert (huge.flops, huge.seen_pairs) == (2 * 64 * huge.pairs, (2**31 - 1) * 32 * 33 // 2)


def test_least_memory_traffic() -> None:
    assert PLAIN.min_bytes == 2 * 4 * 2 * 8 * 100 * 64
    assert replace(PLAIN, lse=True).min_bytes == PLAIN.min_bytes + 4 * 2 * 8 * 100
    assert PACKED.min_bytes == 2 * 2 * 8 * 64 * (47 + 61)


def test_parsing() -> None:
    assert parse_problem("default") == parse_problem("mission") == Problem(1, 8, 512, 64)
    assert parse_problem("decode", seq_kv=100) == Problem(8, 32, 1, 128, kv_heads=8, seq_kv=100)
    assert parse_problem("1x8x512x64", kv_heads=2, window=(128, 0)) == Problem(
        1, 8, 512, 64, kv_heads=2, causal=True, window_left=128
    )
    packed = parse_problem("3x8x40x64", lengths_q=(7, 40, 0), lengths_kv=(40, 9, 12))
    assert packed == PACKED
    assert (packed.memory_batch, packed.rows_q, packed.rows_kv) == (1, 47, 61)
    assert parse_problem("2x4x9x64", lengths_q=(9, 2)).lengths_kv == (9, 2)


@pytest.mark.parametrize(("text", "lengths"), [("1x8x512x64", (512, 2)), ("2x8x511x64", (512, 2)), ("default", (9,))])
def test_packed_lengths_must_match_the_text(text: str, lengths: tuple[int, ...]) -> None:
    with pytest.raises(ProblemError, match=f"write {len(lengths)}x8x{max(lengths)}x64"):
        parse_problem(text, lengths_q=lengths)


@pytest.mark.parametrize("weights", [(1.0, -1.0), (1.0, math.nan), (1e308, 1e308)])
def test_weights_must_have_a_share_each(weights: tuple[float, float]) -> None:
    problems = (PLAIN, replace(PLAIN, causal=True))
    with pytest.raises(ProblemError, match="weight"):
        Workload("mix", tuple(map(WorkloadPart, problems, weights)))


def test_a_pickled_config_is_rehashed_in_another_process() -> None:
    config = Config.of("mma", {"BLOCK_N": 64, "LAYOUT": "padded", "SPLITS": True})
    assert hash(config) == hash(Config(config.family, config.values))  # caches the hash
    packed = pickle.dumps(config)
    check = f"import pickle; from evoengine.model import Config; one = pickle.loads({packed!r})\n"
    check += "print(one in {Config(one.family, one.values)})"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", check], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True,
            cwd=Path(__file__).parent.parent, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == "True"


def test_a_duplicate_has_the_evaluation_of_the_kernel_that_it_repeats() -> None:
    first, twin, orphan, failed = (Config.of("mma", {"BLOCK": number}) for number in range(4))
    executed = Evaluation(first, Status.OK, code_hash="a")
    unbuilt = Evaluation(failed, Status.COMPILE_FAILED)
    evaluations = [
        Evaluation(twin, Status.DUPLICATE, code_hash="a", duplicate_of=first.key),  # stored before the kernel itself
        executed,
        Evaluation(orphan, Status.DUPLICATE, code_hash="b", duplicate_of="0123456789abcdef"),
        unbuilt,
    ]
    assert executed_by_config(evaluations) == {first.key: executed, twin.key: executed, failed.key: unbuilt}
