"""A synthetic device with a sanitizer, and searches on it with given times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.candidate.results import Candidate, Inspection
from evoengine.search.loop import Search
from evoengine.search.settings import SearchResult, SearchSettings
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.valid_space import ValidSpace
from tests.search.synthetic import Listener, SyntheticCompiler, SyntheticExaminer, nothing_found, study_key

GUILTY = Inspection("compute-sanitizer racecheck: hazard", seconds=2.0)


@dataclass
class SanitizingExaminer(SyntheticExaminer):
    """Examiner that supports the sanitizer jobs."""

    sanitizes: bool = True
    guilty: frozenset[int] = frozenset()
    """Places of configs in which the sanitizer finds something."""
    sanitized: list[int] = field(default_factory=list)
    readied: list[int] = field(default_factory=list)
    """Number of checks made before each start of the sanitizer."""
    place_of: dict[Config, int] = field(default_factory=dict)

    def start_sanitizer(self) -> None:
        self.readied.append(len(self.sanitized))

    def sanitize(self, candidate: Candidate) -> Inspection:
        place = self.place_of[candidate.config]
        self.sanitized.append(place)
        return GUILTY if place in self.guilty else replace(nothing_found(candidate.config), seconds=2.0)


def study_of(board: Leaderboard, space: ValidSpace) -> Study:
    """The one study of these searches."""
    return board.open_study(study_key(SearchSettings(budget=1), space))


def run_on(
    board: Leaderboard,
    space: ValidSpace,
    times: list[float],
    examiner: SanitizingExaminer,
    settings: SearchSettings | None = None,
    listener: Listener | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Searches the first configs of a space in order; they become rows 1, 2, 3 … with these times.

    Each has had its duel before the next one is examined.
    """
    configs = [space.config(index) for index in range(len(times))]
    examiner.value_of = dict(zip(configs, times, strict=True)).__getitem__
    examiner.place_of = {config: index + 1 for index, config in enumerate(configs)}
    wanted = settings or SearchSettings(budget=len(times))
    study = study_of(board, space)
    strategy = start_strategy(wanted, space, board, study, starts=configs, log_trials=False)
    compiler = SyntheticCompiler(workers=1)
    return Search(wanted, board, study, strategy, compiler, examiner, listener or Listener(), clock).run()
