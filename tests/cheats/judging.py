"""The defences against generated kernels, in the order in which a search applies them before a GPU runs a kernel."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Final

from evoengine.emulator.screen.records import Rule
from evoengine.errors import CandidateError, ScreenError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.nvrtc import header_dirs, run_nvrtc
from evoengine.kernel.compile.source_screen import SourceRule
from evoengine.kernel.records import Kernel, Source
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem
from evoengine.parity.mutants import SETUPS
from evoengine.search.candidate.admission import AdmissionSetup, Admitter, draw_admission
from evoengine.search.candidate.results import Candidate
from evoengine.search.candidate.screening import screen_kernel
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space
from evoengine.target import Target, get_target
from tests.cheats.corpus import HOPPER_FAMILIES

SEED: Final = 7


def target_of(setup: str) -> Target:
    """Returns the GPU that the kernels of a setup are compiled for."""
    if SETUPS[setup].family in HOPPER_FAMILIES:
        return get_target("h200").compiled_for("sm_90a")
    return get_target("l4")


@functools.cache
def _library() -> TemplateLibrary:
    return TemplateLibrary(*data_dirs("templates"))


@functools.cache
def source_of(setup: str) -> Source:
    """Renders the unchanged kernel of a setup."""
    chosen = SETUPS[setup]
    space = find_space(chosen.family)
    return _library().load(chosen.family).render(space.config(chosen.values), chosen.problem, space, target_of(setup))


@functools.cache
def _admission(problem: Problem) -> AdmissionSetup:
    return draw_admission((problem,), SEED)


def compiles(source: Source, arch: str) -> str:
    """Compiles a source as one that is trusted; returns the compiler's error, empty if there is none."""
    options = [f"-arch={arch}", "--std=c++17", "-default-device", *(f"-I{folder}" for folder in header_dirs())]
    try:
        run_nvrtc(source.text, "/cheat.cu", options)
    except CandidateError as error:
        return str(error)
    return ""


def rejection(source: Source, setup: str, cases: slice = slice(None)) -> str:
    """Runs an untrusted source through all defences before a GPU.

    Args:
        source: Source of a kernel for the problem of the setup.
        setup: Name of the setup.
        cases: Cases of the draw that the emulator runs.

    Returns:
        The defence that rejects it and why: ``source RULE: ...``, ``ptx RULE: ...`` or ``emulator: ...``; empty if it
        is admitted.
    """
    assert source.untrusted
    target = target_of(setup)
    try:
        kernel = Kernel(source, Compiler(None, line_info=False).compile(source, target.arch))
    except ScreenError as error:
        return f"source {_rule(error, [rule.value for rule in SourceRule])}: {error}"
    try:
        screen_kernel(kernel)
    except ScreenError as error:
        return f"ptx {_rule(error, [rule.value for rule in Rule])}: {error}"
    drawn = _admission(SETUPS[setup].problem)
    taken = replace(drawn, cases=tuple(each[cases] for each in drawn.cases))
    admission = Admitter(taken, target).admit(Candidate((kernel,)))
    return f"emulator: {admission.reason}" if admission.reason else ""


def _rule(error: ScreenError, rules: list[str]) -> str:
    """Returns the rule that a message names after the file."""
    rule = str(error).split(": ")[1]
    assert rule in rules
    return rule
