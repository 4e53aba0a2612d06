"""PACK_GQA under a window: what ptxas 13.0 makes of correct PTX."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import pytest

from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, parse_problem
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.mutants import hopper, mma, wgmma
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.templates.building import FamilyBuilder

PROBLEM = parse_problem("1x16x16384x128", kv_heads=4, dtype=DType.BF16, causal=True, window=(1023, None))
TARGETS = {"mma": get_target("l4"), **dict.fromkeys(("wgmma", "hopper"), get_target("h200").compiled_for("sm_90a"))}
BASES = {"mma": mma.BASE, "wgmma": wgmma.BASE, "hopper": hopper.BASE}
FAILED: Mapping[str, Value] = {
    "BLOCK_N": 160,
    "WARPS_M": 4,
    "WARPS_N": 1,
    "MIN_CTAS": 2,
    "MAXRREGCOUNT": 0,
    "PERSISTENT": False,
    "STAGES_K": 1,
    "STAGES_V": 1,
    "CACHE_OP": "cg",
    "L2_PREFETCH_BYTES": 256,
    "STORE_OP": "streaming",
    "OVERLAP": False,
    "PEEL_FIRST": True,
    "UNROLL": 4,
    "EXP_WITH_PV": True,
    "PV_KEYS": 16,
    "KEY_ORDER": "backward",
    "TILE_ORDER": "longest_first",
    "EPILOGUE": "shared",
    "MERGE": "rows",
    "EXP2_POLY": 0,
}
"""Config of wgmma whose kernel was wrong on a GPU and right on the emulator, which runs PTX."""
SINK_PROBLEM = parse_problem("1x64x2048x64", kv_heads=8, dtype=DType.BF16, causal=True, window=(127, None), sink=True)
PERSISTENT: Mapping[str, Value] = {"SCHEDULE": "persistent"}
PARTED: Mapping[str, Value] = {
    **PERSISTENT,
    "BLOCK_N": 48,
    "CTAS_PER_SM": 4,
    "STAGES": 2,
    "BESIDE_VALUES": 25,
}
"""Config of hopper whose lanes came to stmatrix apart: without a key, O was what lay in shared memory before."""


def packed(library: TemplateLibrary, family: str, values: Mapping[str, Value], problem: Problem = PROBLEM) -> Kernel:
    target = TARGETS[family]
    builder = FamilyBuilder(
        library.load(family), find_space(family), BASES[family], Compiler(default_cache_dir()), target
    )
    return builder.build({**values, "PACK_GQA": True}, problem, arch=target.arch)


@pytest.mark.parametrize(("family", "schedule"), [("mma", {}), ("wgmma", {}), ("hopper", {}), ("hopper", PERSISTENT)])
@pytest.mark.every(3)
def test_nothing_is_added_to_the_high_half_of_a_product(
    library: TemplateLibrary, family: str, schedule: Mapping[str, Value]
) -> None:
    # ptxas 13.0 joins a mul.hi with additions to it, and took the end of what a row sees for its begin.
    assert "mul.hi.u32" not in packed(library, family, schedule).binary.ptx


def test_arrivals_of_one_lane_are_predicates(library: TemplateLibrary) -> None:
    # After a branch that one lane takes, ptxas 13.0 did not bring the warp together before stmatrix and shuffles.
    ptx = packed(library, "hopper", PARTED, SINK_PROBLEM).binary.ptx
    arrivals = [line.strip() for line in ptx.splitlines() if "mbarrier.arrive.shared" in line]
    assert len(arrivals) >= 4
    assert [line for line in arrivals if not line.startswith("@")] == []


@pytest.mark.gpu
def test_tiles_without_a_key_are_zero(library: TemplateLibrary) -> None:
    from evoengine.device.cuda.device import CudaDevice

    kernel = packed(library, "hopper", PARTED, SINK_PROBLEM)
    with closing(CudaDevice("sm_90a")) as gpu, closing(gpu.load(kernel)) as loaded:
        for seed in range(6):  # each with other lengths and values of few keys
            verdict = run_gate(loaded, draw_cases(SINK_PROBLEM, seed, max_flops=10**7))
            assert verdict.passed, verdict.reason


@pytest.mark.gpu
def test_what_ptxas_broke_passes_the_gate(library: TemplateLibrary) -> None:
    from evoengine.device.cuda.device import CudaDevice

    with closing(CudaDevice("sm_90a")) as gpu, closing(gpu.load(packed(library, "wgmma", FAILED))) as loaded:
        verdict = run_gate(loaded, draw_cases(PROBLEM, 3, max_flops=10**7))
        assert verdict.passed, verdict.reason
