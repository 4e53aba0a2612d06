"""Counters do not depend on input values: a run on zeros counts the same as a run on random values.

On zeros, values that are equal in all CTAs are computed once; on random values, each CTA has its own values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.contract import random_inputs
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, parse_problem
from evoengine.parity.mutants.mma.setups import (
    CAUSAL,
    DECODE,
    HEADS_PACKED,
    ONE_GROUP,
    PACKED,
    PERSISTENT,
    SPLIT,
    TWO_KERNELS,
    WALKED,
)
from evoengine.space.loader import find_space
from evoengine.target import Target, get_target
from tests.templates.mma_setups import EVERYTHING, PADDED

Build = Callable[..., Kernel]

WHOLE = 1 << 62
"""Limit above all problems of these tests: each runs whole."""
HOPPER = get_target("h200").compiled_for("sm_90a")


def assert_same_counters(kernel: Kernel, problem: Problem, target: Target) -> None:
    """Asserts equal counters of all launches of a call on zeros and on random values."""
    device = EmulatorDevice(target, representative_flops=WHOLE, counters=True, race_check_flops=0)
    zeros, values = device.load(kernel), EmulatorDevice(target, counters=True, race_check_flops=0).load(kernel)
    values.attention(random_inputs(problem, 1))
    assert zeros.counted_steps(problem) == values.counted_steps(problem)
    assert zeros.predict(problem) == values.predict(problem)


@pytest.mark.parametrize(
    ("problem", "overrides"),
    [
        (WALKED, {**PERSISTENT, **SPLIT}),
        pytest.param(
            *(parse_problem("1x32x60x32"), {**PERSISTENT, **TWO_KERNELS, "WARPS_N": 1}), marks=pytest.mark.thorough
        ),
        (parse_problem("1x2x96x64", seq_kv=200, lse=True), {**SPLIT, "WARPS_N": 4}),
        (DECODE, {**TWO_KERNELS, **HEADS_PACKED}),
        pytest.param(
            *(CAUSAL, {"STAGES_K": 2, "STAGES_V": 2, "EPILOGUE": "shared", **ONE_GROUP}), marks=pytest.mark.thorough
        ),
        (PACKED, PADDED),
        (replace(EVERYTHING, softcap=0.0), {}),  # with a softcap, tanhf branches on its argument
    ],
    ids=["persistent, last merges", "persistent, two kernels", "last merges", "decode", "causal", "packed", "all"],
)
@pytest.mark.every(2)
def test_mma(build: Build, problem: Problem, overrides: Mapping[str, Value]) -> None:
    assert_same_counters(build(overrides, problem), problem, get_target("l4"))


@pytest.mark.parametrize(
    ("family", "problem", "target"),
    [
        pytest.param("scalar", parse_problem("1x2x40x64", seq_kv=70), get_target("l4"), marks=pytest.mark.thorough),
        ("scalar", parse_problem("1x2x40x64", causal=True), get_target("l4")),
        pytest.param("wmma", parse_problem("1x2x70x64", seq_kv=150), get_target("l4"), marks=pytest.mark.thorough),
        ("wmma", parse_problem("1x2x70x64", dtype=DType.BF16, causal=True), get_target("l4")),
        ("wgmma", parse_problem("1x2x70x64", seq_kv=150), HOPPER),
    ],
)
@pytest.mark.every(2)
def test_sampled_configs(library: TemplateLibrary, family: str, problem: Problem, target: Target) -> None:
    space = find_space(family)
    config = space.build(problem, target).sample(np.random.default_rng(3))
    source = library.load(family).render(config, problem, space, target)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, target.arch))
    assert_same_counters(kernel, problem, target)
