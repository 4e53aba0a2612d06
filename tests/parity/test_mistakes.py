"""Mistakes made in a NumPy kernel fail on every draw of cases; each profile detects the mistake it is meant for."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from evoengine.model import DType, Problem
from evoengine.parity.compare import judge
from evoengine.parity.float_bits import from_bits
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase, make_case
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.inputs.profiles import make_inputs
from tests.parity.numpy_kernel import RIGHT, Mistake, NumPyKernel

BASE = Problem(1, 2, 40, 16)
BOTH = replace(BASE, window_left=9, window_right=4)
LEFT = replace(BASE, window_left=9, causal=True)
ONLY_LEFT = replace(BASE, window_left=9)
ONLY_RIGHT = replace(BASE, window_right=4)
CAPPED = replace(BASE, softcap=20.0)
SINK = replace(BASE, sink=True)
LSE = replace(BASE, lse=True)
BF16 = replace(BASE, dtype=DType.BF16)
PACKED = replace(BASE, batch=2, lengths_q=(40, 7), lengths_kv=(40, 9))
PACKED_CAUSAL = replace(PACKED, causal=True)

LN2 = float(np.log(2))
LOG2E = float(np.log2(np.e))


def _without_the_first(top: np.ndarray, own: np.ndarray, tile: int) -> np.ndarray:
    """Limits the maximum of the first tile, as a kernel with a constant for it would."""
    return np.asarray(np.minimum(own, 30) if tile == 0 else np.maximum(top, own))


MISTAKES: dict[str, tuple[Problem, Mistake]] = {
    "one key more on the left": (BOTH, Mistake(left_by=1)),
    "one key less on the left": (BOTH, Mistake(left_by=-1)),
    "one key more on the right": (BOTH, Mistake(right_by=1)),
    "one key less on the right": (BOTH, Mistake(right_by=-1)),
    "one key more on the left, causal": (LEFT, Mistake(left_by=1)),
    "one key less on the left, causal": (LEFT, Mistake(left_by=-1)),
    "one key more on the left, alone": (ONLY_LEFT, Mistake(left_by=1)),
    "one key less on the right, alone": (ONLY_RIGHT, Mistake(right_by=-1)),
    "no left side": (LEFT, Mistake(left_by=10**6)),
    "window aligned top-left": (BOTH, Mistake(diagonal=lambda _problem, _queries, _keys: 0)),
    "first tile of the window left out": (LEFT, Mistake(skip=lambda _sequence, tile: tile == 6)),
    "no softcap": (CAPPED, Mistake(softcap=lambda logits, _cap: logits)),
    "no softcap above 50": (CAPPED, Mistake(softcap=lambda s, cap: s if cap > 50 else cap * np.tanh(s / cap))),
    "clamped instead of capped": (CAPPED, Mistake(softcap=lambda logits, cap: np.clip(logits, -cap, cap))),
    "capped without dividing first": (CAPPED, Mistake(softcap=lambda logits, cap: cap * np.tanh(logits))),
    "cap in the wrong base": (
        CAPPED,
        Mistake(softcap=lambda logits, cap: cap * LN2 * np.tanh(logits / (cap * LN2))),
    ),
    "softcap off by 2 %": (CAPPED, Mistake(softcap=lambda logits, cap: 1.02 * cap * np.tanh(logits / cap / 1.02))),
    "no sink": (SINK, Mistake(sink=lambda sinks: np.full_like(sinks, -np.inf))),
    "sink in base 2": (SINK, Mistake(sink=lambda sinks: sinks * LN2)),
    "sink of the head next to it": (SINK, Mistake(sink=lambda sinks: np.roll(sinks, 1))),
    "sink of a head whose index lost bits": (SINK, Mistake(sink=lambda sinks: sinks[np.arange(len(sinks)) % 4])),
    "sink counted twice": (SINK, Mistake(sink=lambda sinks: sinks + LN2)),
    "sink scaled as scores are": (SINK, Mistake(sink=lambda sinks: sinks / 4)),
    "sink of -inf that is no number": (SINK, Mistake(sink=lambda sinks: np.where(np.isinf(sinks), np.nan, sinks))),
    "sink of -inf taken for a number": (
        replace(SINK, causal=True, lse=True),
        Mistake(sink=lambda sinks: np.maximum(sinks, -1e30)),
    ),
    "log-sum-exp in base 2": (LSE, Mistake(lse=lambda lse: lse / LN2)),
    "log-sum-exp off by a thousandth": (LSE, Mistake(lse=lambda lse: lse * 1.001)),
    "log-sum-exp without the maximum": (LSE, Mistake(lse=lambda lse: lse - np.floor(lse))),
    "log-sum-exp without the sink": (
        replace(LSE, sink=True),
        Mistake(lse=lambda lse: np.where(np.arange(lse.shape[1])[:, None] % 4 == 0, lse - 0.01, lse)),
    ),
    "a dead row's log-sum-exp is 0": (
        replace(LSE, causal=True),
        Mistake(lse=lambda lse: np.where(np.isneginf(lse), 0.0, lse)),
    ),
    "a key of the next sequence": (PACKED, Mistake(neighbours=1)),
    "the last sequence's second tile left out": (
        PACKED,
        Mistake(skip=lambda sequence, tile: sequence > 0 and tile > 0),
    ),
    "all diagonals by the longest": (
        PACKED_CAUSAL,
        Mistake(diagonal=lambda problem, _queries, _keys: problem.seq_kv - problem.seq_q),
    ),
    "never rescaled": (BASE, Mistake(rescale=False)),
    "maximum of each tile alone": (BASE, Mistake(maximum=lambda _top, own, _tile: own)),
    "maximum of the first tile": (BASE, Mistake(maximum=lambda top, own, tile: own if tile == 0 else top)),
    "maximum without the first tile": (BASE, Mistake(maximum=_without_the_first)),
    "maximum without the last tile": (
        BASE,
        Mistake(maximum=lambda top, own, tile: top if tile >= 12 else np.maximum(top, own)),
    ),
    "scale off by half a percent, bf16, few dims": (replace(BF16, head_dim=8), Mistake(scale=1.005)),
    "weights sum to 1.003, bf16": (BF16, Mistake(o=lambda out: out * 1.003)),
    "weights sum to 0.997, bf16, causal": (replace(BF16, causal=True), Mistake(o=lambda out: out * 0.997)),
    "sixth tile left out": (BASE, Mistake(skip=lambda _sequence, tile: tile == 5)),
    "scale off by 1 %": (BASE, Mistake(scale=1.01)),
    "scale of the caller ignored": (BASE, Mistake(softmax_scale=lambda inputs: inputs.problem.softmax_scale)),
    "scale without its sign": (BASE, Mistake(softmax_scale=lambda inputs: abs(inputs.softmax_scale))),
    "scale 0 taken for none": (
        BASE,
        Mistake(softmax_scale=lambda call: call.softmax_scale or call.problem.softmax_scale),
    ),
    "scale in fp16": (
        BASE,
        Mistake(softmax_scale=lambda inputs: float(np.float16(inputs.softmax_scale * LOG2E)) / LOG2E),
    ),
    "negative scale in bf16": (
        replace(BASE, dtype=DType.BF16, softcap=20.0),
        Mistake(softmax_scale=lambda inputs: max(inputs.softmax_scale, 0.0)),
    ),
}

SEEDS = range(6)
HALF_OF_THE_SEEDS = pytest.mark.parametrize(
    "seeds", [SEEDS[:3], pytest.param(SEEDS[3:], marks=pytest.mark.thorough)], ids=str
)


@functools.cache
def cases(problem: Problem, seed: int) -> tuple[ParityCase, ...]:
    return draw_cases(problem, seed)


@HALF_OF_THE_SEEDS
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_fails_on_every_draw(name: str, seeds: range) -> None:
    problem, mistake = MISTAKES[name]
    for seed in seeds:
        verdict = run_gate(NumPyKernel(mistake), cases(problem, seed)[:-1])
        assert not verdict.passed, f"{name}, seed {seed}"


def test_an_output_kept_in_the_dtype_between_tiles_fails_on_every_draw() -> None:
    for seed in SEEDS:
        verdict = run_gate(NumPyKernel(Mistake(narrow=True), tile=16), cases(BASE, seed)[:-1])
        assert not verdict.passed, seed


def test_the_scale_of_one_dim_more_fails() -> None:
    problem = replace(BF16, head_dim=256)
    for seed in (0, 1):
        verdict = run_gate(NumPyKernel(Mistake(scale=(256 / 257) ** 0.5)), draw_cases(problem, seed)[:-1])
        assert not verdict.passed
        assert "is off by" in verdict.reason


@pytest.mark.parametrize("problem", [BOTH, LEFT, CAPPED, SINK, LSE, PACKED_CAUSAL], ids=lambda problem: problem.key)
@pytest.mark.every(2)
def test_without_a_mistake_the_same_cases_pass(problem: Problem) -> None:
    for seed in SEEDS:
        verdict = run_gate(NumPyKernel(RIGHT, tile=64), cases(problem, seed))
        assert verdict.passed, verdict.reason


PLAIN = Problem(1, 2, 90, 32, seq_kv=190)

SHOWN: dict[str, tuple[Problem, Mistake]] = {
    "peaky": (PLAIN, Mistake(rescale=False)),
    "large": (PLAIN, Mistake(subtract=False)),
    "offset": (PLAIN, Mistake(o=lambda out: out * 190 / 191)),
    "outlier": (replace(PLAIN, seq_q=190, causal=True), Mistake(top_of_hidden=True)),
    "constant": (replace(PLAIN, window_left=40), Mistake(left_by=1)),
    "tiny": (PLAIN, Mistake(flush=True)),
    "huge": (PLAIN, Mistake(narrow=True)),
    "flat": (PLAIN, Mistake(o=lambda out: out * 1.002)),
}
ONLY_FP16 = {"huge", "flat"}
"""Profiles whose mistake is none in bf16: a sum beyond fp16's range, and an error below the resolution of bf16."""
ONLY_THERE = {"large", "outlier", "tiny"}
"""Profiles whose mistake normal inputs do not detect at all."""


@HALF_OF_THE_SEEDS
@pytest.mark.parametrize("profile", SHOWN)
@pytest.mark.parametrize("dtype", DType)
def test_each_profile_detects_its_mistake(profile: str, dtype: DType, seeds: range) -> None:
    problem, mistake = SHOWN[profile]
    problem = replace(problem, dtype=dtype)
    for seed in seeds:
        case = make_case(profile, make_inputs(problem, profile, seed), seed)
        if dtype is DType.FP16 or profile not in ONLY_FP16:
            assert judge(case, NumPyKernel(mistake).attention(case.inputs)).reason, seed
        assert judge(case, NumPyKernel().attention(case.inputs)).reason == ""
        if profile == "flat":
            assert np.abs(case.reference - 1).max() < 0.05, "all values are near one"
        if profile in ONLY_THERE:
            normal = make_case("normal", make_inputs(problem, "normal", seed), seed)
            assert judge(normal, NumPyKernel(mistake).attention(normal.inputs)).reason == ""


@pytest.mark.parametrize("profile", ["tiny", "huge"])
def test_a_kernel_for_bf16_may_not_pass_values_through_fp16(profile: str) -> None:
    for seed in SEEDS:
        case = make_case(profile, make_inputs(replace(PLAIN, dtype=DType.BF16), profile, seed), seed)
        assert judge(case, NumPyKernel(Mistake(fp16=True)).attention(case.inputs)).reason, seed


def test_equal_keys_detect_an_extra_key_in_every_row() -> None:
    problem = replace(PLAIN, window_left=40)
    shares = {}
    for profile in ("constant", "normal"):
        case = make_case(profile, make_inputs(problem, profile, 1), 1)
        off = from_bits(NumPyKernel(Mistake(left_by=1)).attention(case.inputs).o, problem.dtype)
        right = from_bits(NumPyKernel().attention(case.inputs).o, problem.dtype)
        shares[profile] = float((np.abs(off - right).max(axis=3) > 10 * case.max_error).mean())
    assert shares["constant"] == 1
    assert shares["normal"] < 0.8
