"""Predictions of executed kernels whose CTAs merge splits, against times on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import median_us
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space
from evoengine.target import get_target

SAMPLES = Path(__file__).resolve().parents[2] / "docs" / "results" / "samples"


def test_persistent_ctas_that_merge_rows_with_idle_threads() -> None:
    """A head dimension of 104 does not fill the threads that merge a row."""
    landscape = read_landscape(SAMPLES / "5x7x450x104-again-h200.landscape.xz")
    assert landscape.problem is not None
    recorded = next(
        one
        for one in landscape.evaluations
        if one.ok
        and one.config.family == "mma"
        and {"PERSISTENT": True, "COMBINE": "last", "SPLITS": 3}.items() <= one.config.as_dict().items()
    )
    space, target = find_space("mma"), get_target("h200")
    template = TemplateLibrary(data_dir("templates")).load("mma")
    source = template.render(recorded.config, landscape.problem, space, target)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, target.arch))
    predicted = EmulatorDevice(target).load(kernel).predict(landscape.problem)
    assert predicted.us == pytest.approx(median_us(recorded), rel=0.25)
