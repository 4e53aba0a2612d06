"""A correct CUDA kernel passes the cases that a candidate draws; copies of it with one mistake do not."""

from __future__ import annotations

import functools
import zlib
from dataclasses import replace

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.protocols import LoadedKernel
from evoengine.errors import LaunchError
from evoengine.model import DType, Problem, Verdict
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import draw_cases
from evoengine.target import get_target
from tests.device.scalar_kernel import CAUSAL_MUTANTS, FULL_MUTANTS, MUTANTS, build

pytestmark = pytest.mark.slow

FULL = Problem(1, 2, 64, 16)
CAUSAL = replace(FULL, causal=True)
WINDOW = replace(FULL, window_left=9, window_right=4)
LSE = replace(FULL, lse=True)
SINK = replace(LSE, sink=True)
SOFTCAP = replace(LSE, softcap=8.0)
PACKED = replace(CAUSAL, batch=2, lengths_q=(64, 3), lengths_kv=(64, 9))

FEATURE_MUTANTS: dict[str, tuple[Problem, tuple[str, str]]] = {
    "left-one-more": (WINDOW, ("key >= first_key", "key >= first_key - 1")),
    "left-one-less": (WINDOW, ("key >= first_key", "key > first_key")),
    "right-one-more": (WINDOW, ("diagonal + p.window_right", "diagonal + p.window_right + 1")),
    "no-softcap": (SOFTCAP, ("p.softcap_log2 * tanhf(p.softcap_scale * score)", "p.scale_log2 * score")),
    "softcap-not-scaled": (SOFTCAP, ("tanhf(p.softcap_scale * score)", "tanhf(p.softcap_scale * 4.f * score)")),
    "sink-in-base-2": (SINK, ("p.sink[at.head] * 1.4426950408889634f", "p.sink[at.head]")),
    "sink-after-the-log-sum-exp": (
        SINK,
        ("const float total = mine.total;", "const float total = mine.total - 1e-3f;"),
    ),
    "log-sum-exp-in-base-2": (
        LSE,
        ("(mine.top + log2f(mine.total)) * 0.6931471805599453f", "mine.top + log2f(mine.total)"),
    ),
    "log-sum-exp-of-dead-rows-lowest": (replace(LSE, causal=True), ("__int_as_float(0xff800000)", "-1e30f")),
    "packed-diagonal-of-the-longest": (PACKED, ("row + keys - queries", "row + p.seq_kv - p.seq_q")),
    "packed-keys-of-the-first": (PACKED, ("q_start + row, kv_start};", "q_start + row, 0};")),
}


@functools.cache
def _cases(problem: Problem, seed: int) -> tuple[ParityCase, ...]:
    return draw_cases(problem, seed)[:-1]


def _load(problem: Problem, change: tuple[str, str] | None) -> LoadedKernel:
    return EmulatorDevice(get_target("l4")).load(build(problem, change))


def _verdict(problem: Problem, change: tuple[str, str] | None, seed: int = 0) -> Verdict:
    return run_gate(_load(problem, change), _cases(problem, seed))


def _is_rejected(problem: Problem, change: tuple[str, str], seed: int) -> bool:
    """Whether a kernel fails the gate, or faults as two CTAs write one element or a repetition gives other bits."""
    try:
        return not _verdict(problem, change, seed).passed
    except LaunchError as error:
        return "unordered_write" in str(error) or "order_dependent" in str(error)


def _seed_of(name: str) -> int:
    """Returns a different seed for every mutant, so that none depends on one draw."""
    return zlib.crc32(name.encode()) % 4


@pytest.mark.parametrize(
    "problem",
    [
        FULL,
        *(
            pytest.param(problem, marks=pytest.mark.thorough)
            for problem in (
                *(PACKED, CAUSAL, WINDOW, SINK, SOFTCAP),
                *(replace(one, dtype=DType.BF16) for one in (CAUSAL, SINK)),
            )
        ),
    ],
    ids=lambda problem: problem.key,
)
def test_the_correct_kernel_is_far_within_tolerance(problem: Problem) -> None:
    verdict = _verdict(problem, None, _seed_of(problem.key))
    assert verdict.passed, verdict.reason
    assert verdict.max_error < 0.8 * verdict.tolerance


MANY_TILES = ("no-rescale", "sum-not-rescaled", "skip-last-tile", "scale-10-percent")


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in (*MUTANTS, *FULL_MUTANTS) if name not in (*MANY_TILES, "natural-base")),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in (*MANY_TILES, "natural-base")),
    ],
)
@pytest.mark.every(2)
def test_a_broken_kernel_fails(name: str) -> None:
    assert _is_rejected(FULL, (MUTANTS | FULL_MUTANTS)[name], _seed_of(name))


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.thorough) for name in MUTANTS), *CAUSAL_MUTANTS]
)
@pytest.mark.every(2)
def test_a_broken_causal_kernel_fails(name: str) -> None:
    assert _is_rejected(CAUSAL, (MUTANTS | CAUSAL_MUTANTS)[name], _seed_of(name))


@pytest.mark.parametrize("name", FEATURE_MUTANTS)
@pytest.mark.every(2)
def test_a_kernel_with_a_broken_feature_fails(name: str) -> None:
    problem, change = FEATURE_MUTANTS[name]
    assert not _verdict(problem, change, _seed_of(name)).passed


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("no-rescale", "skip-last-tile", "drop-one-key")),
        "scale-10-percent",
    ],
)
def test_a_broken_bf16_kernel_fails(name: str) -> None:
    assert not _verdict(replace(FULL, dtype=DType.BF16), MUTANTS[name], _seed_of(name)).passed


@pytest.mark.parametrize("name", MANY_TILES)
@pytest.mark.every(2)
def test_the_case_of_many_tiles_detects_it_alone(name: str) -> None:
    """With wider key tiles than this kernel's 32, only a case of many tiles would detect these faults."""
    (case,) = (case for case in _cases(FULL, _seed_of(name)) if case.name.startswith("multi-tile"))
    assert not run_gate(_load(FULL, MUTANTS[name]), [case]).passed
