"""Workloads: one config on several problems, compiled, checked and timed as one candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import (
    Config,
    DeviceInfo,
    Evaluation,
    GpuReading,
    PartTime,
    Problem,
    Status,
    Telemetry,
    Timing,
    Workload,
    WorkloadPart,
)
from evoengine.parity.mutants import SETUPS
from evoengine.parity.mutants.mutant import MutantEdit, mutate
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner
from evoengine.search.candidate.joint_result import joint_timing
from evoengine.search.candidate.result_validation import examination_objection
from evoengine.search.candidate.results import Candidate
from evoengine.search.candidate.setup import Setup, SetupRequest, prepare
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space
from evoengine.target import get_target

pytestmark = pytest.mark.slow

FIRST, SECOND = Problem(1, 1, 16, 8), Problem(1, 2, 8, 8)
MIX = Workload("mix", (WorkloadPart(FIRST, 3.0), WorkloadPart(SECOND, 1.0)))
GPU = DeviceInfo("cuda", "NVIDIA H200", "sm_90", False)


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(SetupRequest(MIX, DeviceSpec("emulator"), inputs_seed=7))


@pytest.fixture(scope="module")
def examiner(setup: Setup) -> Iterator[Examiner]:
    opened = Examiner(setup)
    yield opened
    opened.close()


def build(problem: Problem, *edits: MutantEdit) -> Kernel:
    """A kernel of the mma family, which is fast on the emulator."""
    space, target = find_space("mma"), get_target("l4")
    config = space.config(SETUPS["plain"].values)
    source = TemplateLibrary(*data_dirs("templates")).load("mma").render(config, problem, space, target)
    source = mutate(source, edits)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))


def both(*edits: MutantEdit) -> Candidate:
    """Kernels for both problems; the second one may be wrong."""
    return Candidate((build(FIRST), build(SECOND, *edits)))


def test_the_objective_is_the_weighted_mean(setup: Setup, examiner: Examiner) -> None:
    found = examiner.examine(both())
    assert found.status is Status.OK
    assert examination_objection(setup, found) == ""
    timing, verdict = found.timing, found.verdict
    assert timing is not None
    assert verdict is not None
    assert [(part.problem, part.share) for part in timing.parts] == [(FIRST.key, 0.75), (SECOND.key, 0.25)]
    first, second = (part.median_us for part in timing.parts)
    assert timing.median_us == pytest.approx(0.75 * first + 0.25 * second)
    assert timing.predicted
    assert verdict.worst_case.startswith((FIRST.key, SECOND.key))
    duel = examiner.challenge(both(), both())
    assert list(duel.challenger_us) == pytest.approx([timing.median_us])
    assert not duel.accepted


def test_a_kernel_that_is_wrong_on_one_problem_is_wrong(setup: Setup, examiner: Examiner) -> None:
    scale = "return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale;"
    found = examiner.examine(both(MutantEdit(scale, scale.replace("p.positive_scale", "p.positive_scale * 1.1f"))))
    assert found.status is Status.PARITY_FAILED
    assert found.reason.startswith(f"{SECOND.key}: ")
    assert found.timing is None
    assert examination_objection(setup, found) == ""


def measured(us: float, baseline_us: float | None, discarded: int = 0) -> Timing:
    samples = tuple(us + 0.01 * turn for turn in range(30))
    seen = Telemetry(GpuReading(1980), GpuReading(1965), discarded, throttled=discarded > 0)
    return Timing(us, us, us, False, "graph-warm", samples, baseline_us, "sdpa-cudnn" if baseline_us else "", seen)


def test_the_first_samples_are_averaged_then_the_second_ones() -> None:
    joint = joint_timing((FIRST, SECOND), (0.75, 0.25), (measured(4.0, 8.0), measured(8.0, 12.0, discarded=10)))
    assert joint.samples_us == pytest.approx([5.0 + 0.01 * turn for turn in range(30)])
    assert joint.median_us == pytest.approx(5.145)
    assert joint.low_us < joint.median_us < joint.high_us
    assert joint.baseline_us == pytest.approx(9.0)
    assert joint.baseline == "sdpa-cudnn"
    assert joint.telemetry == Telemetry(GpuReading(1980), GpuReading(1965), 10, True)
    assert joint.parts[1] == PartTime(SECOND.key, 0.25, 8.0, 8.0, 8.0, 12.0, "sdpa-cudnn")
    assert joint_timing((FIRST, SECOND), (0.75, 0.25), (measured(4.0, 8.0), measured(8.0, None))).baseline_us is None


def test_a_config_is_compiled_for_each_problem_and_must_be_valid_for_each(tmp_path: Path) -> None:
    problem, causal = Problem(1, 1, 32, 32), Problem(1, 2, 32, 32, causal=True)
    space, target = find_space("scalar"), get_target("l4")
    config = space.build(problem, target).starts()[0]
    alone = BuildSetup((problem,), target, "sm_89", (space,), data_dirs("templates"), tmp_path)
    single = Builder(alone).build(config)
    joint = Builder(replace(alone, problems=(problem, causal))).build(config)
    assert single.candidate is not None
    assert joint.candidate is not None
    first, second = joint.candidate.kernels
    assert first.config == second.config == config
    assert (first,) == single.candidate.kernels
    assert second.source.text != first.source.text, "the mask is compiled in"
    assert joint.code_hash == joint.candidate.code_hash
    assert joint.code_hash not in (first.binary.code_hash, second.binary.code_hash), "the hash covers both"
    short = Problem(1, 1, 8, 32)
    broken = next(
        config
        for config in map(space.build(problem, target).sample, seeds())
        if space.check(config.as_dict(), short, target)
    )
    refused = Builder(replace(alone, problems=(problem, short))).build(broken)
    assert refused.status is Status.INVALID_CONFIG
    assert refused.reason.startswith(f"{short.key}: ")


def seeds() -> Iterator[np.random.Generator]:
    return (np.random.default_rng(seed) for seed in range(1000))


def test_a_workload_has_its_own_ranking(tmp_path: Path) -> None:
    key = StudyKey(FIRST, "mma", GPU, "graph-warm", "evolution", 0)
    mixed = replace(key, workload=MIX)
    parts = (PartTime(FIRST.key, 0.75, 4.0, 3.9, 4.1, 8.0, "sdpa-flash"), PartTime(SECOND.key, 0.25, 8.0, 8.0, 8.0))
    timing = Timing(5.0, 4.9, 5.1, False, "graph-warm", (5.0,) * 30, parts=parts)
    evaluation = Evaluation(Config.of("mma", {"BLOCK": 1}), Status.OK, code_hash="joint", timing=timing)
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        single, joint = board.open_study(key), board.open_study(mixed)
        assert single.id != joint.id
        row_id = board.record(joint, evaluation)
        board.record(single, replace(evaluation, timing=replace(timing, parts=())))
        assert {row.problem: row.rank for row in board.rows()} == {FIRST.key: 1, MIX.key: 1}
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        record = board.get(row_id)
        assert board.studies()[1].key == mixed
    assert record.evaluation == evaluation
    own = record.own_evaluation
    assert (own.code_hash, own.timing) == ("", Timing(4.0, 3.9, 4.1, False, "graph-warm", (), 8.0, "sdpa-flash"))
