"""Verdicts of the self-test: unbuildable mutants are defects, survivors are reported, a hang stops no other trial."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from evoengine.device.device_selfcheck import build_known_good
from evoengine.device.workers.pool import WorkerPool
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Status
from evoengine.parity.mutants.mutant import Mutant, MutantEdit
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.selftest.gate_controls import PROBLEMS
from evoengine.search.selftest.score import score
from evoengine.search.selftest.selftest import (
    SelftestVerdict,
    TrialBuilder,
    TrialJudge,
    control_trials,
    mutant_trials,
    run_trials,
)
from evoengine.space.data_dirs import data_dir
from evoengine.target import get_target

pytestmark = pytest.mark.slow

TARGET = get_target("l4")
ATTEND = "        attend(p, work_of_block(), smem);\n"


def _mutant(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, "nothing", "plain", (MutantEdit(old, new),))


@pytest.mark.thorough
def test_only_mutants_that_the_gate_rejects_are_killed(tmp_path: Path) -> None:
    mutants = (
        _mutant("moved", "no such text", ""),
        _mutant("broken", ATTEND, "no such thing;"),
        _mutant("hangs", ATTEND, "        while (*static_cast<volatile int*>(p.o) != 1) {}\n"),
        _mutant("harmless", ATTEND, f"\n{ATTEND}"),
        _mutant("wrong", ATTEND, ""),
    )
    builder = partial(TrialBuilder, TARGET, "sm_89", tmp_path)
    judge = partial(TrialJudge, DeviceSpec("emulator"), build_known_good("sm_89", tmp_path))
    with WorkerPool(builder, 1, 120) as builders, WorkerPool(judge, 1, 120) as judges:
        outcomes = list(run_trials(mutant_trials(mutants, 0), builders, judges))
    verdicts = {outcome.trial.name: (outcome.verdict, outcome.status) for outcome in outcomes}
    assert verdicts == {
        "moved": (SelftestVerdict.DEFECT, Status.RENDER_FAILED),
        "broken": (SelftestVerdict.DEFECT, Status.COMPILE_FAILED),
        "hangs": (SelftestVerdict.REJECTED, Status.TIMEOUT),
        "harmless": (SelftestVerdict.PASSED, Status.OK),
        "wrong": (SelftestVerdict.REJECTED, Status.PARITY_FAILED),
    }
    result = score(mutants, outcomes, predicted=True)
    assert not result.passed
    assert [mutant.name for mutant in result.defects] == ["moved", "broken"]
    assert [mutant.name for mutant in result.survivors] == ["harmless"]
    assert result.kill_rate == 2 / 3
    assert result.false_rejection_rate is None


@pytest.mark.thorough
def test_controls_are_spread_over_problems_and_families() -> None:
    families = TemplateLibrary(data_dir("templates")).families()
    trials = control_trials(families, TARGET, 2 * len(PROBLEMS), 3)
    assert [trial.name for trial in trials] == [name for name in PROBLEMS for _ in range(2)]
    assert {trial.config.family for trial in trials} == set(families) - {"hopper", "wgmma"}  # sm_90a only
    on_hopper = control_trials(families, get_target("h200"), 2 * len(PROBLEMS), 3)
    assert {trial.config.family for trial in on_hopper} == set(families)
    assert not any(trial.edits for trial in trials)
    once, again, other = (control_trials(("scalar",), TARGET, 4, seed) for seed in (3, 3, 4))
    assert once == again
    assert once != other
