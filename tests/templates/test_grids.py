"""Grids of the shipped families on problems with more sequences than an axis has blocks."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import parse_problem
from evoengine.space.language.loader import find_space
from evoengine.target import get_target

FIRST_AXIS, OTHER_AXES = 2**31 - 1, 65535
"""Most blocks on an axis of a grid (CUDA C++ Programming Guide, technical specifications)."""


@pytest.mark.parametrize(("family", "target"), [("mma", "l4"), ("wgmma", "h200"), ("hopper", "h200")])
def test_no_axis_of_a_grid_is_too_long(library: TemplateLibrary, family: str, target: str) -> None:
    problem, gpu, space = parse_problem("70000x8x64x64"), get_target(target), find_space(family)
    gpu = gpu.compiled_for("sm_90a") if target == "h200" else gpu
    valid, rng = space.build(problem, gpu), np.random.default_rng(3)
    template = library.load(family)
    for config in (valid.sample(rng) for _ in range(40)):
        for launch in template.render(config, problem, space, gpu).launch.steps(problem):
            assert launch.grid[0] <= FIRST_AXIS, config
            assert max(launch.grid[1:]) <= OTHER_AXES, config
