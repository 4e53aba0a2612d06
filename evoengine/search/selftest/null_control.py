"""The null control: a search of a space in which every candidate is one kernel under another name must crown nobody.

What differs between candidates is only what the device's clock says. So whenever the second candidate or a later one
becomes champion, the search has fooled itself. A search would see through the names, since one kernel has one code
hash: here, on purpose and nowhere else, each name is given a hash of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from evoengine.kernel.records import Kernel
from evoengine.landscape.noise import Noise
from evoengine.landscape.synthetic import METHOD, null_landscape, null_tunables, salted
from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Problem, Status
from evoengine.search.candidate.evaluate import Compilation
from evoengine.search.candidate.services import CompileService, ExamineService
from evoengine.search.events import Crowned, Event, Refused
from evoengine.search.loop import Search
from evoengine.search.replay import ReplayCompiler, ReplayExaminer, replay_info
from evoengine.search.settings import SearchSettings
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

FAMILY: Final = "null"
_SIDE: Final = 64
"""Values of each of the two tunables that make a name."""


@dataclass(frozen=True)
class NullRun:
    """What one search of equals came to."""

    seed: int
    evaluated: int
    failed: int
    """Candidates that were not found correct: they say something about the gate or the device, not about acceptance."""
    accepted: int
    """Candidates that dethroned an equal: each is a false acceptance."""
    refused: int
    """Candidates that looked better by the threshold, and did not stand the duel."""
    luckiest: float
    """The fastest time over the median of all times: 0.95 is a gain of 5 % that was nothing but luck."""
    elapsed_s: float = 0.0
    """What the search took."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage, summed over the candidates."""


@dataclass(frozen=True)
class NullSettings:
    """How a null control is run."""

    budget: int = 500
    strategy: str = "evolution"
    threshold: float = 0.03


class NullCompiler:
    """A :class:`~evoengine.search.candidate.services.CompileService` that hands out one kernel under every name.

    Args:
        kernel: the only kernel there is.
    """

    workers = 1
    lost: tuple[str, ...] = ()

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def submit(self, config: Config) -> Future[Compilation]:
        """The kernel, with the name's own code hash."""
        source, binary = self._kernel.source, self._kernel.binary
        done: Future[Compilation] = Future()
        renamed = replace(binary, code_hash=salted(binary.code_hash, config))
        done.set_result(Compilation(config, Status.OK, "", replace(source, config=config), renamed))
        return done


def null_space(problem: Problem, target: Target) -> ValidSpace:
    """Names to choose from, all valid."""
    space = SearchSpace(FAMILY, "one kernel under many names", null_tunables(_SIDE), (), ())
    return space.build(problem, target)


def simulated_null(sigma: float, drift: float, seed: int, settings: NullSettings) -> NullRun:
    """A null control on a replay with injected noise; needs no device.

    Args:
        sigma: relative noise of each time.
        drift: amplitude of the drift that all times share.
        seed: of noise and search.
        settings: budget and the rest.
    """
    landscape, noise = null_landscape(), Noise(sigma, drift, seed)
    examiner = ReplayExaminer(landscape, noise, settings.threshold)
    (space,) = landscape.spaces.members
    device = replay_info(landscape, noise)
    assert landscape.problem is not None, "a null landscape has a problem"
    return run_null(
        landscape.problem, device, METHOD, space, ReplayCompiler(landscape), examiner, seed=seed, settings=settings
    )


def run_null(
    problem: Problem,
    device: DeviceInfo,
    method: str,
    space: ValidSpace,
    compiler: CompileService,
    examiner: ExamineService,
    *,
    seed: int,
    settings: NullSettings,
) -> NullRun:
    """One search of equals, on a leaderboard of its own that is thrown away.

    Raises:
        EvoEngineError: the search could not go on.
    """
    counter = _Counter()
    search = SearchSettings(settings.budget, settings.strategy, seed, settings.threshold)
    with (
        tempfile.TemporaryDirectory(prefix="evoengine-null-") as folder,
        Leaderboard(f"sqlite:///{Path(folder) / 'null.db'}") as board,
    ):
        study = board.open_study(StudyKey(problem, FAMILY, device, method, settings.strategy, seed))
        strategy = start_strategy(search, space, board, study, log_trials=False)
        result = Search(search, board, study, strategy, compiler, examiner, counter).run()
        times = sorted(
            stored.evaluation.timing.median_us
            for stored in board.evaluations(study)
            if stored.evaluation.ok and stored.evaluation.timing is not None
        )
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


class _Counter:
    """An observer that counts the duels' outcomes."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0

    def notify(self, event: Event) -> None:
        """Takes note of an event."""
        match event:
            case Crowned(duel=duel) if duel is not None:
                self.accepted += 1
            case Refused():
                self.refused += 1
            case _:
                pass
