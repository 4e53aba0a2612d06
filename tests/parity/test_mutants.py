"""Real CUDA kernels, broken in one place, must not pass the small cases; the good kernel must."""

from __future__ import annotations

import functools

import pytest

from evoengine.device.base import LoadedKernel
from evoengine.emulator.device import EmulatorDevice
from evoengine.model import DType, Problem, Verdict
from evoengine.parity.cases import small_cases
from evoengine.parity.gate import ParityCase, run_gate
from evoengine.target import get_target
from tests.device.scalar_kernel import CAUSAL_MUTANTS, FULL_MUTANTS, MUTANTS, build


def _problem(causal: bool, dtype: DType = DType.FP16) -> Problem:
    return Problem(1, 2, 64, 16, causal=causal, dtype=dtype)


@functools.cache
def _cases(problem: Problem) -> tuple[ParityCase, ...]:
    return small_cases(problem, 0)


def _load(problem: Problem, change: tuple[str, str] | None) -> LoadedKernel:
    return EmulatorDevice(get_target("l4")).load(build(problem, change))


def _verdict(problem: Problem, change: tuple[str, str] | None) -> Verdict:
    return run_gate(_load(problem, change), _cases(problem))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DType)
def test_the_good_kernel_passes_with_room(dtype: DType, causal: bool) -> None:
    verdict = _verdict(_problem(causal, dtype), None)
    assert verdict.passed, verdict.reason
    assert verdict.max_error < 0.7 * verdict.tolerance


@pytest.mark.parametrize("name", [*MUTANTS, *FULL_MUTANTS])
def test_a_broken_kernel_fails(name: str) -> None:
    verdict = _verdict(_problem(causal=False), (MUTANTS | FULL_MUTANTS)[name])
    assert not verdict.passed
    assert verdict.reason


@pytest.mark.parametrize("name", [*MUTANTS, *CAUSAL_MUTANTS])
def test_a_broken_causal_kernel_fails(name: str) -> None:
    assert not _verdict(_problem(causal=True), (MUTANTS | CAUSAL_MUTANTS)[name]).passed


def test_a_broken_bf16_kernel_fails() -> None:
    for name in ("no-rescale", "skip-last-tile", "drop-one-key", "scale-10-percent"):
        assert not _verdict(_problem(causal=False, dtype=DType.BF16), MUTANTS[name]).passed, name


@pytest.mark.parametrize("name", ["no-rescale", "sum-not-rescaled", "skip-last-tile", "scale-10-percent"])
def test_the_case_of_many_tiles_alone_tells(name: str) -> None:
    """A wider key tile than this kernel's 32 would show these faults only where there are many tiles."""
    problem = _problem(causal=False)
    (case,) = (case for case in _cases(problem) if case.name == "multi-tile")
    assert not run_gate(_load(problem, MUTANTS[name]), [case]).passed
