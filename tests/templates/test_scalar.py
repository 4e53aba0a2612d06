"""The scalar family against fp64 attention, on the emulator: every feature, every path, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from evoengine.errors import LaunchError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.space.language.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Edit, FamilyBuilder

Judge = Callable[[Kernel, Problem], Verdict]

BASE: Mapping[str, Value] = {
    "THREADS": 128,
    "LANES_PER_KEY": 8,
    "KEYS_PER_STEP": 2,
    "MERGE": "shuffle",
    "VECTOR": 4,
    "STAGING": "direct",
    "STAGES": 1,
    "PAD_HALVES": 0,
    "CACHE_OP": "ca",
    "L2_PREFETCH_BYTES": 0,
    "MIN_CTAS": 1,
    "UNROLL": 1,
}
STAGED: Mapping[str, Value] = {"STAGING": "shared", "STAGES": 2, "PAD_HALVES": 8}
FEW_LANES: Mapping[str, Value] = {"LANES_PER_KEY": 2, "THREADS": 32, "MERGE": "shared", "KEYS_PER_STEP": 1}


@pytest.fixture(scope="session")
def scalar(library: TemplateLibrary, tmp_path_factory: pytest.TempPathFactory) -> FamilyBuilder:
    compiler = Compiler(tmp_path_factory.mktemp("cache"))
    return FamilyBuilder(library.load("scalar"), find_space("scalar"), BASE, compiler, get_target("l4"))


FEATURES: list[tuple[str, Problem, Mapping[str, Value]]] = [
    ("bf16", parse_problem("1x1x40x64", dtype=DType.BF16), {"MERGE": "shared"}),
    ("head_dim 32, whole warp on a key", parse_problem("1x1x33x32"), {"LANES_PER_KEY": 16, "VECTOR": 2}),
    ("head_dim 96, tiles", parse_problem("1x1x33x96"), {**STAGED, "LANES_PER_KEY": 4, "VECTOR": 8}),
    ("head_dim 128, warps merged", parse_problem("1x1x33x128", causal=True), {"LANES_PER_KEY": 32, "THREADS": 256}),
    ("grouped queries", parse_problem("1x4x20x64", kv_heads=2), {"CACHE_OP": "cg", "L2_PREFETCH_BYTES": 128}),
    ("more keys than queries", parse_problem("1x1x9x64", seq_kv=200), {**STAGED, "STAGES": 3, "UNROLL": 2}),
    ("fewer keys than queries", parse_problem("1x1x50x64", seq_kv=20, causal=True), {**STAGED, "MERGE": "shared"}),
    ("two lanes a key", parse_problem("1x1x5x32"), FEW_LANES),
    ("plain tiles", parse_problem("1x1x20x64"), {"STAGING": "shared", "VECTOR": 2}),
]


@pytest.mark.parametrize(("problem", "overrides"), [f[1:] for f in FEATURES], ids=[f[0] for f in FEATURES])
def test_feature_passes_the_gate(
    scalar: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    verdict = judge(scalar.build(overrides, problem), problem)
    assert verdict.passed, verdict.reason


def test_sampled_valid_configs_pass_the_gate(scalar: FamilyBuilder, judge: Judge) -> None:
    problem = parse_problem("1x1x16x64", seq_kv=100)
    valid = scalar.space.build(problem, scalar.target)
    rng = np.random.default_rng(20)
    for config in (valid.sample(rng) for _ in range(2)):
        verdict = judge(scalar.build(config.as_dict(), problem), problem)
        assert verdict.passed, f"{config}: {verdict.reason}"


def test_the_mission_problem_has_many_valid_configs(scalar: FamilyBuilder) -> None:
    assert scalar.space.build(parse_problem("mission"), scalar.target).size >= 200


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_compiles_for_every_architecture(scalar: FamilyBuilder, arch: str) -> None:
    for head_dim, dtype in zip((32, 64, 96, 128), (*DType, *DType), strict=True):
        kernel = scalar.build(STAGED, Problem(1, 1, 64, head_dim, dtype=dtype, causal=head_dim == 96), arch=arch)
        assert kernel.binary.arch == arch
        assert 0 < kernel.binary.resources.registers <= 255
        assert kernel.binary.resources.spill_bytes == 0


CAUSAL_END = "min(p.seq_kv, row + 1 + p.seq_kv - p.seq_q)"
IN_SIGHT = "score[j] = key < visible ?"
WEIGHT = "const float weight = exp2_approx(stats.x - subtrahend);"

MUTANTS: dict[str, tuple[bool, Edit]] = {
    "output never rescaled": (False, ("stream.o[d] *= rescale", "stream.o[d] *= 1.0f")),
    "sum never rescaled": (False, ("stream.sum *= rescale", "stream.sum *= 1.0f")),
    "scale off by 10 %": (False, ("* p.scale_log2;", "* p.scale_log2 * 0.9f;")),
    "last tile skipped": (False, ("(visible + Cfg::TILE_KEYS - 1) / Cfg::TILE_KEYS", "visible / Cfg::TILE_KEYS")),
    "keys past the end counted": (False, (IN_SIGHT, "score[j] = true ?")),
    "one key dropped": (False, (IN_SIGHT, "score[j] = key < visible - 1 ?")),
    "mask shifted right by one": (True, (CAUSAL_END, "min(p.seq_kv, row + 2 + p.seq_kv - p.seq_q)")),
    "mask shifted left by one": (True, (CAUSAL_END, "min(p.seq_kv, row + p.seq_kv - p.seq_q)")),
    "mask aligned top-left": (True, (CAUSAL_END, "min(p.seq_kv, row + 1)")),
    "one lane's columns left out": (False, ("offset < Cfg::LANES_PER_KEY", "offset < Cfg::LANES_PER_KEY / 2")),
    "one warp left out of the merge": (False, (WEIGHT, f"if (partial == 1) continue;\n{WEIGHT}")),
    "warps merged without weights": (False, (WEIGHT, "const float weight = 1.0f;")),
    "K of the wrong head": (False, ("kv_head * p.k_head_stride", "0 * p.k_head_stride")),
}


@pytest.mark.parametrize(("causal", "edit"), MUTANTS.values(), ids=MUTANTS.keys())
def test_broken_kernel_is_rejected(scalar: FamilyBuilder, judge: Judge, causal: bool, edit: Edit) -> None:
    problem = parse_problem("1x2x40x64", causal=causal)
    verdict = judge(scalar.build({}, problem, (edit,)), problem)
    assert not verdict.passed
    assert verdict.reason


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("overrides", [{}, {**STAGED, "LANES_PER_KEY": 4}], ids=["direct", "staged"])
def test_what_the_mutants_break_was_whole(
    scalar: FamilyBuilder, judge: Judge, causal: bool, overrides: Mapping[str, Value]
) -> None:
    problem = parse_problem("1x2x40x64", causal=causal)
    assert judge(scalar.build(overrides, problem), problem).passed


HAZARDS: dict[str, Edit] = {
    "tile read before its copy was waited for": ("copy_async_wait<Cfg::STAGES - 1>();", ""),
    "no barrier before a tile is read": ("__syncthreads();  // A", "// A"),
    "no barrier before a tile is overwritten": ("__syncthreads();  // B", "// B"),
    "no barrier before the merge": ("__syncthreads();  // C", "// C"),
    "reads keys past the end": ("min(first_key + row, visible - 1)", "first_key + row"),
}


@pytest.mark.parametrize("edit", HAZARDS.values(), ids=HAZARDS.keys())
def test_hazard_is_an_error_not_luck(scalar: FamilyBuilder, judge: Judge, edit: Edit) -> None:
    problem = parse_problem("1x2x40x64")
    broken = scalar.build({**STAGED, "LANES_PER_KEY": 4}, problem, (edit,))  # each warp reads what others copied
    with pytest.raises(LaunchError):
        judge(broken, problem)
