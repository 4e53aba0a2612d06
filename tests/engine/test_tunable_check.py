"""``space --check``: a tunable that changes neither machine code nor launch is found and named."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from evoengine.engine.checks.tunable_effects import Effect, FamilyCheck
from evoengine.engine.checks.tunables import check_family
from evoengine.engine.families import wanted_spaces
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.model import Problem
from evoengine.space.loader import load_space
from evoengine.target import get_target
from tests.kernel.families import KERNEL, META, PROBLEM, SPACE, write_family

SMALL = Problem(1, 4, 200, 32)
"""Problem with a small head dim, whose kernels compile fast."""

# The tiny family's tunable PLACE is read nowhere, which makes it a control. A copy of SKEWED has an effect only while
# another tunable has its second value; FIRST and SECOND change only together; GRID changes only the launch.
MORE = """
[tunables.SKEWED_TOO]
kind = "boolean"
unit = "flag"
doc = "start at one"
when = "SKEWED"
[tunables.FIRST]
kind = "ordinal"
values = [1, 2]
unit = "-"
doc = "the same as SECOND"
[tunables.SECOND]
kind = "ordinal"
values = [1, 2]
unit = "-"
doc = "the same as FIRST"
[tunables.GRID]
kind = "ordinal"
values = [1, 2]
unit = "CTAs"
doc = "CTAs without work"
[tunables.NEVER]
kind = "boolean"
unit = "flag"
doc = "a switch for a target that does not exist"
when = "arch_number > 900"
[tunables.ONLY]
kind = "ordinal"
values = [3]
unit = "-"
doc = "a single value"
[constraints.together]
rule = "FIRST == SECOND"
reason = "one number under two names"
"""


IDLE = re.compile(r"\[tunables\.(?:REGISTERS|PLACE)\]\n(?:\w.*\n)+")
"""Tunables of the tiny family that change nothing, for which the check compiles every value for every problem."""


def check_tiny(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, kernel: str, more: str, bases: int = 0, idle: bool = False
) -> FamilyCheck:
    """Checks the tiny family with further tunables, and with or without those that change nothing."""
    meta = META.replace('"heads", "batch"]', '"heads", "batch * GRID"]') if "tunables.GRID" in more else META
    head, constraints, tail = SPACE.partition("[derived.THREADS]")
    space_text = head + more + constraints + tail
    if not idle:
        meta = re.sub("^maxrregcount.*\n", "", meta, flags=re.MULTILINE)
    write_family(folder, kernel=kernel, meta=meta, space=space_text if idle else IDLE.sub("", space_text))
    (folder / "search_spaces").mkdir()
    shutil.move(folder / "copy.toml", folder / "search_spaces" / "copy.toml")
    monkeypatch.setenv("EVOENGINE_DATA", str(folder))
    space = load_space(folder / "search_spaces" / "copy.toml")
    return check_family(space, PROBLEM, get_target("l4"), default_cache_dir(), bases=bases)


def test_each_kind_of_effect_is_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNEL.replace("* Cfg::ROWS + threadIdx.x", "* Cfg::ROWS * Cfg::FIRST + threadIdx.x")
    kernel = kernel.replace("staging[threadIdx.x] = 1.0f;", "staging[threadIdx.x] = Cfg::SKEWED_TOO ? 2.0f : 1.0f;")
    found = check_tiny(tmp_path, monkeypatch, kernel=kernel, more=MORE, idle=True)
    effects = {effect.tunable.name: effect.effect for effect in found.effects}
    assert effects == {
        "WARPS": Effect.CODE,
        "FACTOR": Effect.CODE,
        "REGISTERS": Effect.NOTHING,  # the kernel has launch bounds, which override a register cap
        "PLACE": Effect.NOTHING,
        "SKEWED": Effect.CODE,
        "SKEWED_TOO": Effect.CODE,
        "FIRST": Effect.CODE,
        "SECOND": Effect.CODE,
        "GRID": Effect.LAUNCH,
        "NEVER": Effect.FIXED,
        "ONLY": Effect.SINGLE,
    }
    coupled = {one.tunable.name: one.shown_by.coupled for one in found.effects if one.shown_by and one.shown_by.coupled}
    assert coupled == {"FIRST": ("SECOND",), "SECOND": ("FIRST",)}
    assert len(found.errors) == 3
    for line, name in zip(found.errors, ("REGISTERS", "PLACE", "NEVER"), strict=True):
        assert line.startswith(f"family copy: tunable {name}")
        assert str(tmp_path / "search_spaces" / "copy.toml") in line


@pytest.mark.thorough
def test_a_value_that_never_compiles_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KERNEL.replace("struct Pair", 'static_assert(Cfg::FACTOR == 1, "no factor");\nstruct Pair')
    (factor,) = (
        one for one in check_tiny(tmp_path, monkeypatch, kernel=kernel, more="").effects if one.tunable.name == "FACTOR"
    )
    assert (factor.effect, factor.is_error) == (Effect.FAILED, True)
    assert "no factor" in factor.reason


def test_values_that_are_one_kernel_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNEL.replace("static_cast<short>(0)", "static_cast<short>(Cfg::WARPS > 1)").replace("Cfg::ROWS", "32")
    kernel = kernel.replace("__launch_bounds__(Cfg::LAUNCH_THREADS)", "").replace("threadIdx.x ^ 1", "0")
    meta = 'threads = "32"\nsmem_bytes = "128"'
    monkeypatch.setattr(
        "tests.engine.test_tunable_check.META",
        META.replace('threads = "THREADS"\nsmem_bytes = "THREADS * 4"', meta).replace("ceil_div(seq_q, ROWS)", "seq_q"),
    )
    found = check_tiny(tmp_path, monkeypatch, kernel=kernel, more="", bases=2)
    warps = found.effects[0]
    assert (warps.tunable.name, warps.effect, warps.alike) == ("WARPS", Effect.CODE, ((2, 4),))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["scalar", "hopper"])
@pytest.mark.thorough
def test_every_tunable_of_a_shipped_family_has_an_effect(family: str) -> None:
    """Checks the smallest and the largest space; `evoengine space --check FAMILY` checks the others."""
    (space,) = wanted_spaces(family, None)
    found = check_family(space, SMALL, get_target("l4"), default_cache_dir())
    assert found.errors == ()
    launch_only = {one.tunable.name for one in found.effects if one.effect is Effect.LAUNCH}
    assert launch_only == ({"SPLIT_TILES"} if family == "hopper" else set())
    assert all(one.effect is Effect.CODE for one in found.effects if one.tunable.name not in launch_only)
