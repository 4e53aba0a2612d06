"""Predictions of executed kernels whose CTAs merge splits, against times on an H200 and against the forecast."""

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
from evoengine.model import DType, Problem, Value
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
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


def test_a_merge_of_one_row_waits_for_all_partial_results_at_once() -> None:
    """Its loads are behind eight instructions each, which ptxas predicates; 5.95 us on an H200."""
    problem = Problem(1, 8, 1, 80, kv_heads=2, seq_kv=4096, dtype=DType.BF16)
    space, target = find_space("mma"), get_target("h200")
    values: dict[str, Value] = {
        "WARPS_M": 1,
        "WARPS_N": 8,
        "BLOCK_N": 16,
        "SPLITS": 16,
        "M_ATOMS": 1,
        "COMBINE": "last",
    }
    values |= {"STAGES_K": 1, "STAGES_V": 1, "Q_LOCATION": "direct", "ROW_SUM": "tensor", "EXP_WITH_PV": True}
    config = space.build(problem, target).repair(values | {"SMEM_LAYOUT": "swizzle64", "LDMATRIX_BATCH": 4})
    source = TemplateLibrary(data_dir("templates")).load("mma").render(config, problem, space, target)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, target.arch))
    predicted = EmulatorDevice(target).load(kernel).predict(problem)
    assert config.as_dict()["SPLITS"] == 16
    assert predicted.us == pytest.approx(5.95, rel=0.25)
