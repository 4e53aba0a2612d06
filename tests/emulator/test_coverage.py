"""The table of instructions in docs/emulator.md covers the PTX that NVRTC generates for the kernel families."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.emulator import Emulator
from evoengine.emulator.ptx.parser import parse
from evoengine.kernel.compile.nvrtc import compile_ptx
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import get_target

pytestmark = pytest.mark.slow

TABLE = (Path(__file__).resolve().parents[2] / "docs" / "emulator.md").read_text("utf-8")
NAMED = {
    name
    for group in re.findall(r"^\|[^|]*\| `([^`]+)` \|", TABLE.partition("<!-- supported: begin -->")[2], re.M)
    for name in group.split(", ")
}
PLAIN = Problem(1, 2, 128, 64)
FEATURES = replace(PLAIN, kv_heads=1, dtype=DType.BF16, causal=True)
INLINED = {"barrier_note", "barrier_look"}
"""Opcodes that only the parser generates."""
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")
CI_ARCH = dict.fromkeys(("hopper", "wgmma"), "sm_90a")
"""Architecture of a family in CI, where that is not sm_89."""
FAMILIES = sorted(file.stem for file in data_dir("search_spaces").glob("*.toml"))
LIBRARY = TemplateLibrary(data_dir("templates"))


@functools.cache
def texts(family: str, arch: str) -> list[str]:
    """PTX of a random config for a plain problem and one with more features, without those the family cannot solve."""
    target, space = replace(get_target("h200"), arch=arch), find_space(family)
    template = LIBRARY.load(family)
    found = []
    for seed, problem in enumerate((PLAIN, FEATURES)):
        if template.meta.supports(problem, arch) is not None:
            continue
        config = space.build(problem, target).sample(np.random.default_rng([seed, *arch.encode()]))
        found.append(compile_ptx(template.render(config, problem, space, target).text, arch))
    return found


@pytest.mark.parametrize(
    ("family", "arch"),
    [
        pytest.param(family, arch, marks=[] if arch == CI_ARCH.get(family, "sm_89") else [pytest.mark.thorough])
        for family in FAMILIES
        for arch in ARCHS
    ],
)
def test_the_table_lists_every_opcode_of_every_family(family: str, arch: str) -> None:
    found = texts(family, arch)
    assert found or arch != CI_ARCH.get(family, "sm_89"), "every family compiles for the architecture that CI takes"
    for text in found:
        for entry in re.findall(r"\.entry (\w+)", text):
            names = {ins.name for ins in parse(text, entry).instructions} - INLINED
            assert names <= NAMED, sorted(names - NAMED)
            Emulator(text, entry=entry).check()
