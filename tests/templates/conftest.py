"""What the tests of the shipped families share: a config to start from, and the road up to the gate on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

import pytest

from evoengine.emulator.device import EmulatorDevice
from evoengine.kernel.artifact import Kernel
from evoengine.kernel.compiler import Compiler
from evoengine.kernel.template import TemplateLibrary
from evoengine.model import Problem, Value, Verdict
from evoengine.parity.cases import build_cases
from evoengine.parity.gate import run_gate
from evoengine.space.loader import find_space
from evoengine.space.locate import data_dir
from evoengine.space.space import SearchSpace
from evoengine.target import get_target

MMA_BASE: Mapping[str, Value] = {
    "WARPS_M": 2,
    "WARPS_N": 2,
    "M_ATOMS": 1,
    "BLOCK_N": 32,
    "STAGES_K": 1,
    "STAGES_V": 1,
    "SMEM_LAYOUT": "swizzle",
    "PAD_HALVES": 0,
    "Q_LOCATION": "direct",
    "CACHE_OP": "cg",
    "L2_PREFETCH_BYTES": 0,
    "EPILOGUE": "direct",
    "MIN_CTAS": 1,
    "MAXRREGCOUNT": 0,
    "UNROLL": 1,
    "EXP_WITH_PV": False,
}
"""A small, plain config of the mma family."""

TARGET = get_target("l4")

Edit = tuple[str, str]
"""A mutation of a rendered source: text that must occur, and what replaces it."""


@pytest.fixture(scope="session")
def library() -> TemplateLibrary:
    return TemplateLibrary(data_dir("templates"))


@pytest.fixture(scope="session")
def mma_space() -> SearchSpace:
    return find_space("mma")


@pytest.fixture(scope="session")
def build(
    library: TemplateLibrary, mma_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Kernel]:
    """``build(overrides, problem, edits=(), arch="sm_89")``: renders, mutates, compiles one mma config."""
    compiler = Compiler(tmp_path_factory.mktemp("cache"))
    template = library.load("mma")

    def build(
        overrides: Mapping[str, Value], problem: Problem, edits: tuple[Edit, ...] = (), arch: str = "sm_89"
    ) -> Kernel:
        config = mma_space.config({**MMA_BASE, **overrides})
        source = template.render(config, problem, mma_space, TARGET)
        text = source.text
        for old, new in edits:
            assert old in text, f"the mutant no longer fits the template: {old!r} is gone"
            text = text.replace(old, new)
        source = replace(source, text=text, source_hash=source.source_hash if not edits else f"mutant{hash(edits):x}")
        return Kernel(source, compiler.compile(source, arch))

    return build


@pytest.fixture(scope="session")
def judge() -> Callable[[Kernel, Problem], Verdict]:
    """``judge(kernel, problem)``: the parity gate's verdict on the emulator, all checks on."""
    device = EmulatorDevice(TARGET, None)

    def judge(kernel: Kernel, problem: Problem) -> Verdict:
        with closing(device.load(kernel)) as loaded:
            return run_gate(loaded, build_cases(problem, (7,), None))

    return judge
