"""Joint reports of compute-sanitizer's tools: three are final, and racecheck is verified on the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from evoengine.device.tools.sanitizer import TOOLS, ToolReport
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, Value
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.inputs.profiles import make_inputs
from evoengine.parity.mutants.mma import BASE, MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, mutate
from evoengine.search.candidate.results import Inspection
from evoengine.search.candidate.sanitizing import judge_reports, sanitized_case
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import get_target

pytestmark = pytest.mark.slow

H200 = get_target("h200")
PROBLEM = Problem(1, 1, 1024, 64, causal=True)
"""Groups of warps have different numbers of key tiles here, which racecheck reports as a race. Too large for the parity
gate's own race check."""
OVERRIDES: Mapping[str, Value] = {
    "M_ATOMS": 2,
    "WARPS_M": 2,
    "WARPS_N": 4,
    "BLOCK_N": 64,
    "STAGES_K": 2,
    "Q_LOCATION": "registers",
}
"""The layout of the best kernel of the long causal problem, which racecheck refused on an H200."""
INPUTS = make_inputs(PROBLEM, "normal", 7)
FOUND = "Error: Race reported between Read access at add+0x8a60 in mma.cu:923 and Write access in mma.cu:897"
MERGE = MutantEdit("__syncthreads();  // the partial results of all groups are visible to all threads", "")
RINGS = MutantEdit("group_barrier(group);  // all warps of the group are done with its rings", "//")
HAZARDS = [mutant for mutant in MUTANTS if mutant.hazard and mutant.breaks == "pipeline"]


def build(*edits: MutantEdit, problem: Problem = PROBLEM, overrides: Mapping[str, Value] = OVERRIDES) -> Kernel:
    """The kernel, or one of its mutants."""
    space = find_space("mma")
    config = space.config({**BASE, **overrides})
    source = TemplateLibrary(data_dir("templates")).load("mma").render(config, problem, space, H200)
    source = mutate(source, edits)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_90"))


def reports(*found: str) -> list[ToolReport]:
    """Reports of all tools, of which the named ones found something."""
    return [ToolReport(tool, finding=FOUND if tool in found else "") for tool in TOOLS]


def test_reports_without_findings() -> None:
    assert judge_reports(reports(), build(), INPUTS, H200) == Inspection()


def test_a_false_report_of_a_race_is_overruled_and_both_are_noted() -> None:
    ruling = judge_reports(reports("racecheck"), build(), INPUTS, H200)
    assert ruling.finding == ""
    (note,) = ruling.notes
    assert note.startswith(f"overruled: compute-sanitizer racecheck: {FOUND}; ")
    assert PROBLEM.key in note


@pytest.mark.parametrize("edit", [MERGE, RINGS], ids=["before the merge", "before rings are reused"])
@pytest.mark.every(2)
def test_without_a_barrier_it_is_a_race(edit: MutantEdit) -> None:
    ruling = judge_reports(reports("racecheck"), build(edit), INPUTS, H200)
    assert ruling.finding.startswith(f"compute-sanitizer racecheck: {FOUND}; checked on the emulator: ")
    assert "data_race" in ruling.finding
    assert ruling.notes == ()


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.thorough] if number % 2 else [])
        for number, mutant in enumerate(HAZARDS)
    ],
)
@pytest.mark.every(2)
def test_no_mutant_without_a_barrier_or_a_wait_passes(mutant: Mutant) -> None:
    setup = SETUPS[mutant.setup]
    inputs = make_inputs(setup.problem, "normal", 7)
    good, bad = (build(*edits, problem=setup.problem, overrides=setup.values) for edits in ((), mutant.edits))
    assert judge_reports(reports("racecheck"), good, inputs, H200).finding == ""
    assert judge_reports(reports("racecheck"), bad, inputs, H200).finding


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "racecheck"])
def test_a_finding_of_another_tool_is_final(tool: str) -> None:
    for found in ((tool,), (tool, "racecheck")):
        ruling = judge_reports(reports(*found), build(), INPUTS, H200)
        assert ruling == Inspection(f"compute-sanitizer {tool}: {FOUND}")


def test_a_kernel_that_the_emulator_cannot_run_stays_refused() -> None:
    kernel = build()
    strange = kernel.binary.ptx.replace("bar.sync", "tcgen05.fence", 1)
    assert strange != kernel.binary.ptx
    kernel = replace(kernel, binary=replace(kernel.binary, ptx=strange))
    ruling = judge_reports(reports("racecheck"), kernel, INPUTS, H200)
    assert ruling.finding.startswith(f"compute-sanitizer racecheck: {FOUND}; checked on the emulator: ")


def test_a_tool_that_could_not_run_is_noted() -> None:
    mixed = [replace(report, trouble="too old") if report.tool == "initcheck" else report for report in reports()]
    assert judge_reports(mixed, build(), INPUTS, H200).notes == ("not checked: compute-sanitizer initcheck: too old",)


@pytest.mark.parametrize(
    ("limit", "most"), [("SANITIZED_FLOPS", PROBLEM.flops), ("SANITIZED_BYTES", PROBLEM.min_bytes)]
)
def test_the_problem_itself_is_checked_unless_it_is_large(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    gate = draw_cases(PROBLEM, 7)
    monkeypatch.setattr(f"evoengine.search.candidate.sanitizing.{limit}", most)
    assert sanitized_case(gate).inputs.problem == PROBLEM
    monkeypatch.setattr(f"evoengine.search.candidate.sanitizing.{limit}", most - 1)
    assert sanitized_case(gate).inputs.problem.flops < PROBLEM.flops
