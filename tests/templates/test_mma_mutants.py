"""Mutants of the mma kernel: the gate rejects each, and the emulator detects each hazard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from evoengine.errors import DefectError, LaunchError
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, Verdict
from evoengine.parity import mutants
from evoengine.parity.mutants.mma import MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup, mutate
from evoengine.search.selftest.selftest import runnable
from evoengine.space.loader import family_names, find_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import get_target
from tests.templates.building import SHOWN_BY_OTHERS, controls, sample_of

Build = Callable[..., Kernel]
Judge = Callable[[Kernel, Problem], Verdict]


@pytest.mark.parametrize("setup", controls(MUTANTS, SETUPS))
def test_unchanged_setup_passes_the_gate(build: Build, judge: Judge, setup: MutantSetup) -> None:
    verdict = judge(build(setup.values, setup.problem), setup.problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mutant", sample_of(MUTANTS, "mma"))
@pytest.mark.every(2)
def test_broken_kernel_is_rejected(build: Build, judge: Judge, mutant: Mutant) -> None:
    setup = SETUPS[mutant.setup]
    broken = build(setup.values, setup.problem, mutant.edits)
    if mutant.hazard:  # results may be correct on the emulator, which runs warps in lockstep: it must fault
        with pytest.raises(LaunchError):
            judge(broken, setup.problem)
        return
    try:
        verdict = judge(broken, setup.problem)
    except LaunchError:  # wrong addresses and uninitialised reads are detected before wrong results
        return
    assert not verdict.passed
    assert verdict.reason


def test_mutants_of_all_families_are_found_and_their_names_differ() -> None:
    assert {setup.family for setup in mutants.SETUPS.values()} == {"hopper", "mma", "scalar", "wgmma", "wmma"}
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 140
    assert {mutant.setup for mutant in mutants.MUTANTS} == mutants.SETUPS.keys()
    assert all(mutant.edits for mutant in mutants.MUTANTS)
    assert set(MUTANTS) <= set(mutants.MUTANTS)


@pytest.mark.parametrize("family", ["hopper", "mma", "scalar", "wgmma", "wmma"])
def test_every_mutant_fits_its_template(library: TemplateLibrary, family: str) -> None:
    """The tests run a sample of the mutants: those that it leaves out must fit too."""
    target = get_target("h200").compiled_for("sm_90a") if family in ("hopper", "wgmma") else get_target("l4")
    template, space, texts = library.load(family), find_space(family), set()
    for mutant in mutants.MUTANTS:
        setup = mutants.SETUPS[mutant.setup]
        if setup.family == family:
            source = template.render(space.config(setup.values), setup.problem, space, target)
            texts.add((mutant.setup, mutate(source, mutant.edits).text))
    assert len(texts) == sum(mutants.SETUPS[mutant.setup].family == family for mutant in mutants.MUTANTS)


def test_mutants_of_every_part_run_in_ci() -> None:
    """At least in one family."""
    parts = {(mutants.SETUPS[mutant.setup].family, mutant.breaks) for mutant in mutants.MUTANTS}
    assert {part for _, part in parts} == {part for family, part in parts if part not in SHOWN_BY_OTHERS[family]}


def test_mutants_are_selected_by_family_and_architecture() -> None:
    def families(known: tuple[str, ...], arch: str) -> set[str]:
        return {mutants.SETUPS[mutant.setup].family for mutant in runnable(mutants.MUTANTS, known, arch)}

    assert families(family_names(), "sm_89") == {"mma", "scalar", "wmma"}
    assert families(family_names(), "sm_90a") == {"hopper", "mma", "scalar", "wgmma", "wmma"}
    assert families(("scalar",), "sm_89") == {"scalar"}


def test_an_edit_must_match_as_often_as_it_says(library: TemplateLibrary, mma_space: SearchSpace) -> None:
    setup = SETUPS["plain"]
    source = library.load("mma").render(mma_space.config(setup.values), setup.problem, mma_space, get_target("l4"))
    source = replace(source, text="one two two")
    changed = mutate(source, (MutantEdit("one", "1"), MutantEdit("two", "2", times=2)))
    assert changed.text == "1 2 2"
    assert changed.source_hash != source.source_hash
    assert changed.config == source.config
    assert mutate(source, ()) == source
    for edit, found in (
        (MutantEdit("three", ""), 0),
        (MutantEdit("two", "2"), 2),
        (MutantEdit("one", "1", times=2), 1),
    ):
        with pytest.raises(DefectError, match=f"occurs {found} times, not {edit.times}"):
            mutate(source, (edit,))
    with pytest.raises(DefectError):
        mutate(
            source, (MutantEdit("one", "1"), MutantEdit("one", "1"))
        )  # the second edit applies to the result of the first
