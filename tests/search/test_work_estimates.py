"""Families whose kernels take long on the emulator: the estimate, and that a search reports it once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.protocols import PredictedKernel
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.engine.progress_lines import ProgressLines
from evoengine.engine.workers.pools import DeviceWorkers
from evoengine.errors import LaunchError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from evoengine.parity.gate import REPEATED, run_gate
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.jobs import EstimateWork
from evoengine.search.candidate.results import Candidate, WorkEstimate
from evoengine.search.candidate.setup import SetupRequest, prepare
from evoengine.search.events import Examined, SlowFamily
from evoengine.search.settings import SearchSettings
from evoengine.space.data_dirs import packaged_dir
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import load_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target
from tests.naive_family import write_naive
from tests.search.families import build_families
from tests.search.synthetic import Listener, SyntheticCompiler, SyntheticExaminer, open_search

PROBLEM = Problem(1, 1, 64, 16)
L4 = get_target("l4")


def kernel_of(family: str, folder: Path, problem: Problem = PROBLEM) -> Kernel:
    """Builds the first config of a family."""
    space = load_space(folder / "search_spaces" / f"{family}.toml")
    valid = space.build(problem, L4)
    config = next(iter(valid.starts()), None) or next(iter(valid))
    source = TemplateLibrary(folder / "templates").load_for(space).render(config, problem, space, L4)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, L4.arch))


@pytest.mark.thorough
def test_the_estimate_is_that_of_the_executed_cases(tmp_path: Path) -> None:
    naive = kernel_of("naive", write_naive(tmp_path / "data"))
    setup = prepare(SetupRequest(PROBLEM, DeviceSpec("emulator"), inputs_seed=7))
    with closing(DeviceWorkers(setup, (GpuBinding(),), L4)) as workers:
        estimate = workers.submit(EstimateWork(Candidate((naive,)))).result(300)
        fast = kernel_of("mma", packaged_dir("templates").parent)
        assert workers.submit(EstimateWork(Candidate((fast,)))).result(300) is None
    assert estimate is not None

    loaded = EmulatorDevice(L4).load(naive)
    assert isinstance(loaded, PredictedKernel)
    draw = setup.parts[0].pool.draw(naive.source.source_hash, slow=True)
    executed = {}
    for number, case in enumerate((*draw.gate, draw.recheck)):
        loaded.attention(case.inputs)
        executed[number] = loaded.executed(case.inputs.problem)
    total = sum(executed.values()) + executed[REPEATED]
    assert estimate.warp_instructions == pytest.approx(total, rel=0.1)
    own = executed[len(draw.gate) - 1] + executed[len(draw.gate)]
    assert estimate.problem_share == pytest.approx(own / total, rel=0.1)
    assert estimate.seconds > 0


@pytest.mark.thorough
def test_a_slow_kernel_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    """On the default problem, where a thread of this kernel makes a whole pass over the keys."""
    problem = Problem(1, 8, 512, 64)
    naive = kernel_of("naive", write_naive(tmp_path / "data"), problem)
    pool = prepare(SetupRequest(problem, DeviceSpec("emulator"), inputs_seed=7)).parts[0].pool
    closely_checked = pool.draw(naive.source.source_hash, slow=True).gate[1:3]
    verdict = run_gate(EmulatorDevice(L4).load(naive), closely_checked)
    assert (verdict.passed, verdict.reason) == (True, "")


@dataclass
class EstimatingExaminer(SyntheticExaminer):
    """A synthetic device with a fixed estimate for each family."""

    estimate_of: Callable[[str], WorkEstimate | None] = lambda _: None

    def estimate_work(self, candidate: Candidate) -> WorkEstimate | None:
        return self.estimate_of(candidate.config.family)


def reported(board: Leaderboard, space: ValidSpace | FamilySpaces, examiner: SyntheticExaminer) -> list[Any]:
    listener = Listener()
    search, _ = open_search(board, space, SearchSettings(budget=12), SyntheticCompiler(), examiner, listener)
    assert search.run().progress.evaluated == 12
    first = next(number for number, event in enumerate(listener.events) if isinstance(event, Examined))
    slow = listener.of(SlowFamily)
    assert not slow or listener.events.index(slow[0]) < first + 2  # before the user has waited for several candidates
    return slow


def test_a_search_reports_each_slow_family_once(board: Leaderboard, tmp_path: Path) -> None:
    slow = WorkEstimate(1_074_000_000, 40.2, 0.7)
    quick = WorkEstimate(1_000_000, 0.4, 0.7)
    answers = {"alpha": slow, "beta": quick, "gamma": slow}
    found = reported(board, build_families(tmp_path), EstimatingExaminer(estimate_of=answers.__getitem__))
    assert sorted((event.family, event.estimate) for event in found) == [("alpha", slow), ("gamma", slow)]


def failing(_: str) -> WorkEstimate | None:
    raise LaunchError("an access outside a buffer")


@pytest.mark.parametrize(
    "examiner", [SyntheticExaminer(), EstimatingExaminer(), EstimatingExaminer(estimate_of=failing)]
)
def test_a_device_without_an_estimate_reports_nothing(
    board: Leaderboard, space: ValidSpace, examiner: SyntheticExaminer
) -> None:
    assert reported(board, space, examiner) == []


@pytest.mark.parametrize(("share", "remedy"), [(0.9, "--problem"), (0.1, "parity cases that every problem has")])
def test_the_notice_is_one_line_with_a_remedy_that_helps(share: float, remedy: str) -> None:
    lines: list[str] = []
    ProgressLines(lines.append).notify(SlowFamily("naive", WorkEstimate(1_074_000_000, 40.2, share)))
    (line,) = lines
    for part in ("family naive", "about 40 s per candidate", "1,074 million", "a GPU", remedy):
        assert part in line
