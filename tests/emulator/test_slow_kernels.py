"""Kernels that are slow on the emulator are checked and predicted on a slice of the problem."""

from __future__ import annotations

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.representative import SLOW_FLOPS, is_fast_on_emulator, representative
from evoengine.kernel.records import Kernel
from evoengine.model import Problem
from evoengine.parity.inputs.pool import build_pool
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space
from evoengine.target import get_target

pytestmark = pytest.mark.slow

PROBLEM = Problem(1, 2, 320, 64)


def kernel(family: str, gpu: str = "l4") -> Kernel:
    """Kernel of the first config that a search of the family evaluates."""
    target, space = get_target(gpu), find_space(family)
    setup = BuildSetup((PROBLEM,), target, target.arch, (space,), data_dirs("templates"), None)
    built = Builder(setup).build(space.build(PROBLEM, target).starts()[0]).kernel
    assert built is not None
    return built


@pytest.fixture(scope="module")
def scalar() -> Kernel:
    return kernel("scalar")


def test_families_are_classified_by_their_instructions(scalar: Kernel) -> None:
    assert not is_fast_on_emulator(scalar.binary.ptx)
    assert is_fast_on_emulator(kernel("mma").binary.ptx)
    assert is_fast_on_emulator(kernel("wmma").binary.ptx)
    assert not is_fast_on_emulator(kernel("wgmma", "h200").binary.ptx)
    assert not is_fast_on_emulator(kernel("hopper", "h200").binary.ptx)


def test_a_slice_predicts_the_time_of_the_whole_problem(scalar: Kernel) -> None:
    part = representative(PROBLEM, SLOW_FLOPS)
    assert part.flops < PROBLEM.flops
    by_slice = EmulatorDevice(get_target("l4")).load(scalar)
    whole = EmulatorDevice(get_target("l4"), representative_flops=PROBLEM.flops).load(scalar)
    assert by_slice.predict(PROBLEM) == whole.predict(PROBLEM)


def test_slow_kernels_are_checked_on_slices_and_small_cases() -> None:
    part = representative(PROBLEM, SLOW_FLOPS)
    pool = build_pool(PROBLEM, 3, slow_part=part)
    fast, slow = pool.draw("abc"), pool.draw("abc", slow=True)
    assert slow.gate[:-1] == fast.gate[:-1]
    assert (fast.gate[-1].name, slow.gate[-1].name, slow.recheck.name) == ("problem", "problem-slice", "problem-slice")
    assert slow.gate[-1].inputs.problem == slow.recheck.inputs.problem == part
    without = build_pool(Problem(1, 2, 16, 16), 3, slow_part=representative(Problem(1, 2, 16, 16), SLOW_FLOPS))
    assert without.draw("abc", slow=True).gate[-1] is without.problem
