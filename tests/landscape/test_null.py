"""Null control: among equal kernels no challenger is accepted, and the control detects a faulty acceptance rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.engine.checks.null_control import device_condition
from evoengine.engine.options.verbs import SelftestOptions
from evoengine.kernel.records import Binary, Kernel, LaunchSpec, Source
from evoengine.landscape.file import keyed
from evoengine.landscape.noise import Noise
from evoengine.landscape.synthetic import METHOD, null_landscape
from evoengine.model import Config, Evaluation, Problem, Resources
from evoengine.search.replay import ReplayService, replay_info
from evoengine.search.selftest.null_control import (
    NullCompiler,
    NullRun,
    NullSettings,
    null_space,
    run_null,
    simulated_null,
)
from evoengine.target import get_target


@pytest.mark.parametrize("sigma", [pytest.param(0.01, marks=pytest.mark.thorough), 0.02])
def test_no_challenger_is_accepted_among_equals(sigma: float) -> None:
    runs = [simulated_null(sigma, 0.02, seed, NullSettings(200, "random")) for seed in range(2)]
    assert [run.accepted for run in runs] == [0, 0]
    assert [(run.evaluated, run.failed) for run in runs] == [(200, 0)] * 2
    # Some seemed 3 % faster than the champion: without duels they would have been accepted.
    assert sum(run.refused for run in runs) > 0
    assert all(run.luckiest < 0.97 for run in runs)


def test_no_challenger_is_accepted_with_the_default_strategy() -> None:
    run = simulated_null(0.02, 0.02, 7, NullSettings(50))
    assert (run.evaluated, run.failed, run.accepted) == (50, 0, 0)


def test_the_control_detects_a_rule_that_accepts_equals() -> None:
    """With a threshold of zero the noise of a duel is enough for an acceptance, which the control must report."""
    runs = [simulated_null(0.02, 0.02, seed, NullSettings(100, "random", 0.0)) for seed in range(2)]
    assert sum(run.accepted for run in runs) > 0


def test_a_faster_kernel_is_accepted() -> None:
    """Every tenth kernel is 8 % faster, so the control can accept a challenger at all."""
    landscape = null_landscape(200)
    faster = tuple(_faster(e) if number % 10 == 0 else e for number, e in enumerate(landscape.evaluations))
    landscape = keyed(replace(landscape, families=(replace(landscape.families[0], evaluations=faster),)))
    noise = Noise(0.01, 0.02, 5)
    assert landscape.problem is not None
    replay = ReplayService(landscape, noise, 0.03)
    run = run_null(
        landscape.problem,
        replay_info(landscape, noise),
        METHOD,
        landscape.spaces.members[0],
        replay,
        replay,
        seed=5,
        settings=NullSettings(100, "random"),
    )
    assert run.accepted == 1


def _faster(evaluation: Evaluation) -> Evaluation:
    assert evaluation.timing is not None
    return replace(evaluation, timing=replace(evaluation.timing, median_us=9.2, low_us=9.2, high_us=9.2))


def test_every_name_is_the_same_kernel_with_another_hash() -> None:
    problem = Problem(1, 8, 512, 64)
    source = Source(Config.of("mma", {"A": 1}), "text", "s1", "t1", 0, LaunchSpec(("1", "1", "1"), 128, 0, ()))
    compiler = NullCompiler(Kernel(source, Binary("sm_90a", b"cubin", "ptx", "c1", Resources(1, 0, 0, 0, 0, 128), "")))
    space = null_space(problem, get_target("h200"))
    assert space.size >= 1000
    built = [compiler.build(space.config(index)) for index in range(50)]
    assert len({compilation.binary.code_hash for compilation in built if compilation.binary}) == 50
    assert {(c.binary.cubin, c.source.text) for c in built if c.binary and c.source} == {(b"cubin", "text")}
    assert [c.kernel.config for c in built if c.kernel] == [space.config(index) for index in range(50)]


@pytest.mark.thorough
def test_a_device_measures_one_kernel_under_many_names() -> None:
    """The pipeline of a GPU on the emulator: real workers and the real parity gate; all predictions are equal."""
    reported: list[NullRun] = []
    condition = device_condition(
        SelftestOptions("emulator", runs=1, budget=4), Problem(1, 1, 16, 16), report=reported.append
    )
    (run,) = condition.runs
    assert reported == [run]
    assert (run.evaluated, run.failed, run.accepted, run.luckiest) == (4, 0, 0, 1.0)


@pytest.mark.gpu
def test_no_challenger_is_accepted_among_equals_on_a_gpu() -> None:
    """A short form of ``selftest --null``, which takes about ten minutes."""
    condition = device_condition(SelftestOptions("cuda", runs=2, budget=100))
    assert condition.accepted == 0
    assert all(_is_complete(run) for run in condition.runs)


def _is_complete(run: NullRun) -> bool:
    return (run.evaluated, run.failed) == (100, 0)
