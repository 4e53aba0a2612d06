"""The null control: in a search whose candidates are all the same kernel, no challenger may replace the champion.

The candidates differ only in their measured times, so every replacement of the first champion is a false acceptance. A
search recognises identical kernels by their code hash; here each config therefore gets a code hash of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from evoengine.kernel.records import Kernel
from evoengine.landscape.noise import Noise
from evoengine.landscape.synthetic import METHOD, null_landscape, null_tunables, salted
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import ACCEPT_THRESHOLD, Config, DeviceInfo, Problem, Status
from evoengine.search.candidate.jobs import Compile, Job, JobService, ResultT, perform
from evoengine.search.candidate.results import Compilation
from evoengine.search.events import ChallengeRejected, ChampionAccepted, Event
from evoengine.search.loop import Search
from evoengine.search.replay import ReplayService, replay_info
from evoengine.search.settings import SearchSettings
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.system.temporary import TemporaryFolder
from evoengine.target import Target

FAMILY: Final = "null"
_SIDE: Final = 64
"""Number of values of each of the two tunables."""


@dataclass(frozen=True)
class NullRun:
    """Result of one null search."""

    seed: int
    evaluated: int
    failed: int
    """Candidates that were not correct, which indicates a fault of the gate or the device, not of acceptance."""
    accepted: int
    """Challengers that replaced a champion; each is a false acceptance."""
    refused: int
    """Challengers whose first timing was faster by the threshold, and that lost the duel."""
    luckiest: float
    """Fastest time over the median of all times: 0.95 is an apparent speed-up of 5 % by noise alone."""
    elapsed_s: float = 0.0
    """Duration of the search."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage, summed over the candidates."""


@dataclass(frozen=True)
class NullSettings:
    """Settings of a null control."""

    budget: int
    strategy: str = "evolution"
    threshold: float = ACCEPT_THRESHOLD


class NullCompiler:
    """A :class:`~evoengine.search.candidate.jobs.JobService` that compiles every config to one kernel.

    Args:
        kernel: The only kernel.
    """

    workers = 1
    lost: tuple[str, ...] = ()

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def supports(self, kind: type[Job[Any]]) -> bool:
        return kind is Compile

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        future.set_result(perform(self, job))
        return future

    def build(self, config: Config) -> Compilation:
        """Returns the kernel with the config's own code hash."""
        source, binary = self._kernel.source, self._kernel.binary
        renamed = replace(binary, code_hash=salted(binary.code_hash, config))
        return Compilation(config, Status.OK, "", (replace(source, config=config),), (renamed,))


def null_space(problem: Problem, target: Target) -> ValidSpace:
    """The search space of a null control, in which every config is valid."""
    space = SearchSpace(FAMILY, "one kernel under many names", null_tunables(_SIDE), (), ())
    return space.build(problem, target)


def simulated_null(sigma: float, drift: float, seed: int, settings: NullSettings) -> NullRun:
    """Runs a null control on a replay device with injected noise.

    Args:
        sigma: Relative standard deviation of each time.
        drift: Relative amplitude of the drift that all times share.
        seed: Random seed of the noise and of the search.
        settings: Settings of the null control.
    """
    landscape, noise = null_landscape(), Noise(sigma, drift, seed)
    replay = ReplayService(landscape, noise, settings.threshold)
    (space,) = landscape.spaces.members
    device = replay_info(landscape, noise)
    assert landscape.problem is not None, "a null landscape has a problem"
    return run_null(landscape.problem, device, METHOD, space, replay, replay, seed=seed, settings=settings)


def run_null(
    problem: Problem,
    device: DeviceInfo,
    method: str,
    space: ValidSpace,
    compiler: JobService,
    examiner: JobService,
    *,
    seed: int,
    settings: NullSettings,
) -> NullRun:
    """Runs one null search on a temporary leaderboard.

    Args:
        problem: Problem of the kernel.
        device: Device of the examiner.
        method: Name of the objective.
        space: Search space of the null control.
        compiler: Compile service that returns the same kernel for every config.
        examiner: Examine service.
        seed: Random seed of the search.
        settings: Settings of the null control.

    Raises:
        EvoEngineError: The search could not continue.
    """
    counter = _Counter()
    search = SearchSettings(settings.budget, settings.strategy, seed, settings.threshold)
    with (
        TemporaryFolder() as folder,
        Leaderboard(folder / "null.db") as board,
    ):
        study = board.open_study(StudyKey(problem, FAMILY, device, method, settings.strategy, seed))
        strategy = start_strategy(search, space, board, study, log_trials=False)
        result = Search(search, board, study, strategy, compiler, examiner, counter).run()
        times = _sorted_times_us(board, study)
    evaluated = result.progress.evaluated
    return NullRun(
        seed=seed,
        evaluated=evaluated,
        failed=evaluated - len(times),
        accepted=counter.accepted,
        refused=counter.refused,
        luckiest=times[0] / times[len(times) // 2] if times else 1.0,
        elapsed_s=result.progress.elapsed_s,
        stage_seconds=dict(result.stage_seconds),
    )


def _sorted_times_us(board: Leaderboard, study: Study) -> list[float]:
    """Returns the median times of the study's correct candidates, the fastest first."""
    return sorted(
        stored.evaluation.timing.median_us
        for stored in board.evaluations(study)
        if stored.evaluation.ok and stored.evaluation.timing is not None
    )


class _Counter:
    """An observer that counts accepted and rejected challengers."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0

    def notify(self, event: Event) -> None:
        match event:
            case ChampionAccepted(duel=duel) if duel is not None:
                self.accepted += 1
            case ChallengeRejected():
                self.refused += 1
            case _:
                pass
