"""Faults of the machine during a search: nothing is recorded, candidates are tried again, and the end says why."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evoengine.errors import MachineError, WorkerCrashError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Status
from evoengine.search.candidate import machine_retry
from evoengine.search.candidate.machine_retry import ATTEMPTS
from evoengine.search.candidate.results import Candidate, Compilation, Examination, Inspection
from evoengine.search.settings import SearchSettings
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, open_search

BUDGET = 6


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_retry, "PAUSE_S", 0.001)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Leaderboard]:
    with Leaderboard(tmp_path / "board.db") as opened:
        yield opened


@pytest.fixture
def space(tmp_path: Path) -> ValidSpace:
    return build_space(tmp_path)


@dataclass
class Fault:
    """Raises errors for each subject so many times."""

    error: Exception
    times: int
    seen: Counter[str] = field(default_factory=Counter)

    def strike(self, key: str) -> None:
        self.seen[key] += 1
        if self.seen[key] <= self.times:
            raise self.error


class Compiler(SyntheticCompiler):
    fault: Fault

    def build(self, config: Config) -> Compilation:
        self.fault.strike(config.key)
        return super().build(config)


class Examiner(SyntheticExaminer):
    fault: Fault
    also_inspections: bool = False

    def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
        self.fault.strike(candidate.config.key)
        return super().examine(candidate, champion_us)

    def inspect(self, candidate: Candidate) -> Inspection:
        if self.also_inspections:
            self.fault.strike(f"inspect {candidate.config.key}")
        return super().inspect(candidate)


def services(error: Exception, times: int) -> tuple[Compiler, Examiner]:
    compiler, examiner = Compiler(), Examiner()
    compiler.fault, examiner.fault = Fault(error, times), Fault(error, times)
    return compiler, examiner


ERRORS = (
    OSError(errno.ENOSPC, "No space left on device", "/tmp/x"),
    MemoryError("Unable to allocate 3.2 GiB"),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_machine_that_recovers_costs_nothing(board: Leaderboard, space: ValidSpace, error: Exception) -> None:
    settings = SearchSettings(budget=BUDGET)
    compiler, examiner = services(error, 2)
    examiner.also_inspections = True
    search, study = open_search(board, space, settings, compiler, examiner)
    result = search.run()
    rows = board.evaluations(study)
    assert [row.evaluation.status for row in rows] == [Status.OK] * BUDGET
    assert result.champion is not None
    assert result.champion.median_us == min(row.evaluation.value_us or 0 for row in rows)
    assert board.leased(study) == {}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["compiler", "examiner"])
def test_a_machine_that_does_not_recover_ends_the_search(
    board: Leaderboard, space: ValidSpace, error: Exception, where: str
) -> None:
    compiler, examiner = services(error, ATTEMPTS + 99)
    broken, sound = (compiler, examiner) if where == "compiler" else (examiner, compiler)
    sound.fault.times = 0
    search, study = open_search(board, space, SearchSettings(budget=BUDGET), compiler, examiner)
    with pytest.raises(MachineError) as caught:
        search.run()
    line = str(caught.value)
    assert "the same command goes on" in line
    assert "\n" not in line
    assert len(line) < 300
    assert board.evaluations(study) == []
    with Leaderboard(board.path) as other:
        assert other.adopt_orphans(study) == []
    assert max(broken.fault.seen.values()) <= ATTEMPTS
    again, _ = open_search(board, space, SearchSettings(budget=BUDGET), SyntheticCompiler(), SyntheticExaminer())
    assert again.run().progress.evaluated == BUDGET


def test_a_crash_is_still_the_candidates(board: Leaderboard, space: ValidSpace) -> None:
    compiler, examiner = services(WorkerCrashError("killed its worker twice: SIGSEGV"), 0)
    search, study = open_search(board, space, SearchSettings(budget=BUDGET), compiler, examiner)
    first = next(iter(space.config(index) for index in range(space.size)))
    examiner.fault_of = lambda config: "raise examine" if config == first else ""
    search.run()
    crashed = [row for row in board.evaluations(study) if row.evaluation.status is Status.CRASHED]
    assert len(crashed) <= 1
