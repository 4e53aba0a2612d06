"""Known mistakes in the mma kernel: what the gate must reject, and what the emulator must not let pass for luck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from evoengine.errors import DefectError, LaunchError
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, Verdict
from evoengine.parity.mutants import BASE, MUTANTS, SETUPS, Edit, Mutant, Setup, mutate
from evoengine.space.search_space import SearchSpace
from evoengine.target import get_target

Build = Callable[..., Kernel]
Judge = Callable[[Kernel, Problem], Verdict]


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_what_the_mutants_break_was_whole(build: Build, judge: Judge, setup: Setup) -> None:
    verdict = judge(build(setup.overrides, setup.problem), setup.problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_kernel_is_rejected(build: Build, judge: Judge, mutant: Mutant) -> None:
    setup = SETUPS[mutant.setup]
    broken = build(setup.overrides, setup.problem, mutant.edits)
    if (
        mutant.hazard
    ):  # warps run in step here, so the numbers might come out right by luck: it must notice all the same
        with pytest.raises(LaunchError):
            judge(broken, setup.problem)
        return
    try:
        verdict = judge(broken, setup.problem)
    except LaunchError:  # wrong addresses and uninitialised bytes are found before the numbers are
        return
    assert not verdict.passed
    assert verdict.reason


def test_mutants_are_many_and_their_names_differ() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert {mutant.setup for mutant in MUTANTS} == SETUPS.keys()
    assert all(mutant.edits for mutant in MUTANTS)


def test_an_edit_must_occur_as_often_as_it_says(library: TemplateLibrary, mma_space: SearchSpace) -> None:
    setup = SETUPS["plain"]
    source = library.load("mma").render(
        mma_space.config({**BASE, **setup.overrides}), setup.problem, mma_space, get_target("l4")
    )
    source = replace(source, text="one two two")
    changed = mutate(source, (Edit("one", "1"), Edit("two", "2", times=2)))
    assert changed.text == "1 2 2"
    assert changed.source_hash != source.source_hash
    assert changed.config == source.config
    assert mutate(source, ()) == source
    for edit, found in ((Edit("three", ""), 0), (Edit("two", "2"), 2), (Edit("one", "1", times=2), 1)):
        with pytest.raises(DefectError, match=f"occurs {found} times, not {edit.times}"):
            mutate(source, (edit,))
    with pytest.raises(DefectError):
        mutate(source, (Edit("one", "1"), Edit("one", "1")))  # the second looks at what the first has left
