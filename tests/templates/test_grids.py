"""Grids of the shipped families on problems with more sequences than an axis has blocks."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import parse_problem
from evoengine.space.loader import find_space
from evoengine.target import get_target

FIRST_AXIS, OTHER_AXES = 2**31 - 1, 65535
"""Most blocks on an axis of a grid (CUDA C++ Programming Guide, technical specifications)."""


@pytest.mark.parametrize(("family", "target"), [("mma", "l4"), ("wgmma", "h200"), ("hopper", "h200")])
@pytest.mark.every(2)
def test_no_axis_of_a_grid_is_too_long(library: TemplateLibrary, family: str, target: str) -> None:
    gpu, space, template = get_target(target), find_space(family), library.load(family)
    gpu = gpu.compiled_for("sm_90a") if target == "h200" else gpu
    has_axes = {}
    for batch in (64, 70_000):
        problem = parse_problem(f"{batch}x8x64x64")
        valid, rng = space.build(problem, gpu), np.random.default_rng(3)
        configs = [valid.sample(rng) for _ in range(120)]
        rendered = [template.render(config, problem, space, gpu) for config in configs]
        grids = [launch.grid for source in rendered for launch in source.launch.steps(problem)]
        assert max(grid[0] for grid in grids) <= FIRST_AXIS
        assert max(max(grid[1:]) for grid in grids) <= OTHER_AXES
        has_axes[batch] = any(grid[1:] != (1, 1) for grid in grids)
    assert has_axes[64], "grids of three axes stay valid where they fit"
