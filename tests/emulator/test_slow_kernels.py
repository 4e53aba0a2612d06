"""Kernels that are slow on the emulator are checked and predicted on a slice of the problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.representative import SLOW_FLOPS, is_fast_on_emulator, representative
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.nvrtc import compile_ptx
from evoengine.kernel.records import Kernel, Source
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem
from evoengine.parity.inputs.pool import build_pool
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space
from evoengine.target import get_target

pytestmark = pytest.mark.slow

PROBLEM = Problem(1, 2, 320, 64)


def source(family: str, gpu: str = "l4") -> Source:
    """Source of the first config that a search of the family evaluates."""
    target, space = get_target(gpu), find_space(family)
    config = space.build(PROBLEM, target).starts()[0]
    return TemplateLibrary(*data_dirs("templates")).load(family).render(config, PROBLEM, space, target)


@pytest.fixture(scope="module")
def scalar() -> Kernel:
    text = source("scalar")
    return Kernel(text, Compiler(default_cache_dir()).compile(text, "sm_89"))


@pytest.mark.thorough
def test_families_are_classified_by_their_instructions(scalar: Kernel) -> None:
    assert not is_fast_on_emulator(scalar.binary.ptx)
    assert is_fast_on_emulator(compile_ptx(source("mma").text, "sm_89"))
    assert is_fast_on_emulator(compile_ptx(source("wmma").text, "sm_89"))
    assert not is_fast_on_emulator(compile_ptx(source("wgmma", "h200").text, "sm_90a"))
    assert not is_fast_on_emulator(compile_ptx(source("hopper", "h200").text, "sm_90a"))


def test_a_slice_predicts_the_time_of_the_whole_problem(scalar: Kernel) -> None:
    part = representative(PROBLEM, SLOW_FLOPS)
    assert part.flops < PROBLEM.flops
    by_slice = EmulatorDevice(get_target("l4")).load(scalar)
    whole = EmulatorDevice(get_target("l4"), representative_flops=PROBLEM.flops).load(scalar)
    assert by_slice.predict(PROBLEM) == whole.predict(PROBLEM)


def test_slow_kernels_are_checked_on_slices_and_small_cases() -> None:
    problem = replace(PROBLEM, heads=8, kv_heads=8, head_dim=16)
    part = representative(problem, SLOW_FLOPS)
    assert part.flops < problem.flops
    pool = build_pool(problem, 3, slow_part=part)
    fast, slow = pool.draw("abc"), pool.draw("abc", slow=True)
    assert slow.gate[:-1] == fast.gate[:-1]
    assert (fast.gate[-1].name, slow.gate[-1].name, slow.recheck.name) == ("problem", "problem-slice", "problem-slice")
    assert slow.gate[-1].inputs.problem == slow.recheck.inputs.problem == part
    without = build_pool(Problem(1, 2, 16, 16), 3, slow_part=representative(Problem(1, 2, 16, 16), SLOW_FLOPS))
    assert without.draw("abc", slow=True).gate[-1] is without.problem
