"""Fixtures of the template tests: template library, kernel builders, and the parity gate on the emulator."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, Value, Verdict
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.mutants.mma import BASE
from evoengine.parity.mutants.mutant import MutantEdit, mutate
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import get_target

TARGET = get_target("l4")


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
    """Returns ``build(overrides, problem, edits=(), arch="sm_89")``, which builds one mma config with edits."""
    compiler = Compiler(default_cache_dir())
    template = library.load("mma")

    def build(
        overrides: Mapping[str, Value], problem: Problem, edits: tuple[MutantEdit, ...] = (), arch: str = "sm_89"
    ) -> Kernel:
        config = mma_space.config({**BASE, **overrides})
        source = mutate(template.render(config, problem, mma_space, TARGET), edits)
        return Kernel(source, compiler.compile(source, arch))

    return build


@pytest.fixture(scope="session")
def judge() -> Callable[[Kernel, Problem], Verdict]:
    """Returns ``judge(kernel, problem)``, which gives the parity gate's verdict on the emulator with all checks on."""
    device = EmulatorDevice(TARGET, None)

    @functools.cache
    def cases(problem: Problem) -> tuple[ParityCase, ...]:
        return draw_cases(problem, 7)

    passed: defaultdict[str, set[tuple[Problem, float]]] = defaultdict(set)
    """Small cases that a kernel has passed, by its hash: a kernel of several problems has the same ones."""

    def judge(kernel: Kernel, problem: Problem) -> Verdict:
        *small, last = cases(problem)
        known = passed[f"{kernel.source.source_hash} {kernel.binary.code_hash}"]
        drawn = {(case.inputs.problem, case.inputs.softmax_scale) for case in small}
        with closing(device.load(kernel)) as loaded:
            verdict = run_gate(loaded, (last,) if drawn <= known else (*small, last))
        if verdict.passed:
            known.update(drawn)
        return verdict

    return judge
