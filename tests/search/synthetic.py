"""A synthetic device: services in threads of this process; times come from a landscape, faults on demand."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from evoengine.bench.acceptance import judge_duel
from evoengine.kernel.records import Binary, LaunchSpec, Source
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Duel, Problem, Resources, Status, Timing, Verdict
from evoengine.search.candidate.jobs import Job, JobService, ResultT, Sanitize, perform
from evoengine.search.candidate.results import Candidate, Compilation, Examination, Inspection
from evoengine.search.events import Event
from evoengine.search.loop import Search
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.sampler import Pruner
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space, noise, true_us

PROBLEM = Problem(1, 8, 512, 64)
RESOURCES = Resources(96, 0, 0, 0, 32768, 128)
_PATIENCE_S = 600.0
"""Longer than any wait takes; a wait for a process that died ends then."""


def own_code(config: Config) -> str:
    """Gives every config distinct machine code."""
    return config.key


def unroll_is_dead(config: Config) -> str:
    """Ignores UNROLL: pairs of configs compile to the same machine code."""
    return Config.of(config.family, config.as_dict() | {"UNROLL": False}).key


def pad_and_unroll_are_dead(config: Config) -> str:
    """Ignores UNROLL and PAD: groups of six configs compile to the same machine code."""
    return Config.of(config.family, config.as_dict() | {"UNROLL": False, "PAD": 0}).key


def no_fault(config: Config) -> str:
    """Fault function of a device on which everything works."""
    return ""


def nothing_found(config: Config) -> Inspection:
    """Inspection of a finalist without a fault."""
    return Inspection()


def many_faults(config: Config) -> str:
    """Fails about two in five candidates; the config's hash decides how."""
    kinds = ("compile", "resource", "parity", "timeout", "raise compile", "raise examine")
    draw = int(hashlib.sha256(config.key.encode()).hexdigest()[:4], 16) % 15
    return kinds[draw] if draw < len(kinds) else ""


@dataclass
class SyntheticCompiler:
    """A compile service of threads in this process."""

    workers: int = 2
    code_of: Callable[[Config], str] = own_code
    fault_of: Callable[[Config], str] = no_fault
    compiled: list[str] = field(default_factory=list)
    lost: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.workers)

    def supports(self, kind: type[Job[Any]]) -> bool:
        return hasattr(self, kind.method)

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        return self._pool.submit(perform, self, job)

    def build(self, config: Config) -> Compilation:
        self.compiled.append(config.key)
        fault = self.fault_of(config)
        if fault == "raise compile":
            raise OSError("the compiler process was killed")
        spec = LaunchSpec(("1", "1", "1"), 128, 32768, ())
        source = Source(config, f"// {config}\n", hashlib.sha256(str(config).encode()).hexdigest()[:16], "t0", 0, spec)
        if fault == "compile":
            return Compilation(config, Status.COMPILE_FAILED, "line 3: expected ;", (source,), (), {"compile": 0.5})
        code_hash = f"code-{self.code_of(config)}"  # never the key of a config
        binary = Binary("sm_89", b"\x7fELF", "", code_hash, RESOURCES, "")
        if fault == "resource":
            return Compilation(config, Status.RESOURCE_LIMIT, "too much shared memory", (source,), (binary,))
        if fault == "refused":
            return Compilation(config, Status.LAUNCH_FAILED, "out of bounds on the emulator", (source,), (binary,))
        return Compilation(config, Status.OK, "", (source,), (binary,), {"compile": 0.5})


@dataclass
class SyntheticExaminer:
    """An examine service of threads in this process, with times from a landscape."""

    workers: int = 1
    value_of: Callable[[Config], float] = true_us
    fault_of: Callable[[Config], str] = no_fault
    slow_s: float = 0.0
    examined: list[str] = field(default_factory=list)
    duels: list[tuple[str, str]] = field(default_factory=list)
    duel_noise: float = 0.001
    inspection_of: Callable[[Config], Inspection] = nothing_found
    inspected: list[str] = field(default_factory=list)
    sanitizes: bool = False
    predicted: bool = False
    lost: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.workers)

    def supports(self, kind: type[Job[Any]]) -> bool:
        return hasattr(self, kind.method) and (kind is not Sanitize or self.sanitizes)

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        return self._pool.submit(perform, self, job)

    def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
        if self.slow_s:
            time.sleep(self.slow_s)
        self.examined.append(candidate.config.key)
        fault = self.fault_of(candidate.config)
        if fault == "raise examine":
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        if fault == "timeout":
            return Examination(Status.TIMEOUT, "not finished after 5 s")
        if fault == "parity":
            return Examination(Status.PARITY_FAILED, "wrong", Verdict(False, 1.5, 1e-3, 0.9, 3, "tiny", "wrong"))
        us = self.value_of(candidate.config)
        timing = Timing(us, us * 0.99, us * 1.01, self.predicted, "graph-warm", (us, us), 2 * us, "flash")
        return Examination(Status.OK, "", Verdict(True, 4e-4, 1e-3, 2e-4, 6, "mission"), timing, {"bench": 0.25})

    def challenge(self, challenger: Candidate, champion: Candidate) -> Duel:
        self.duels.append((challenger.config.key, champion.config.key))
        pairs = range(9)
        ours = [self._sample(challenger.config, f"a{pair}") for pair in pairs]
        theirs = [self._sample(champion.config, f"b{pair}") for pair in pairs]
        return judge_duel(ours, theirs)

    def inspect(self, candidate: Candidate) -> Inspection:
        self.inspected.append(candidate.config.key)
        return self.inspection_of(candidate.config)

    def _sample(self, config: Config, salt: str) -> float:
        return self.value_of(config) * (1 + noise(config, salt, self.duel_noise))


@dataclass
class Listener:
    """Keeps every event."""

    events: list[Event] = field(default_factory=list)

    def notify(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def study_key(settings: SearchSettings, space: ValidSpace | FamilySpaces) -> StudyKey:
    """Identity of a study on the synthetic device."""
    device = DeviceInfo("cuda", "Synthetic GPU", "sm_89", False, "13.0", "13.0")
    return StudyKey(
        PROBLEM, ",".join(FamilySpaces.around(space).families), device, "graph-warm", settings.strategy, settings.seed
    )


def open_search(
    board: Leaderboard,
    space: ValidSpace | FamilySpaces,
    settings: SearchSettings,
    compiler: JobService,
    examiner: JobService,
    listener: Listener | None = None,
    clock: Callable[[], float] = time.monotonic,
    pruner: Pruner | None = None,
    *,
    log_trials: bool = False,
) -> tuple[Search, Study]:
    """Builds a search; its Optuna study is written only on request, since that takes longer than the search."""
    study = board.open_study(study_key(settings, space))
    strategy = start_strategy(settings, space, board, study, pruner=pruner, log_trials=log_trials)
    return Search(settings, board, study, strategy, compiler, examiner, listener, clock), study


@dataclass
class PacedExaminer(SyntheticExaminer):
    """Waits before the first examination, so that tests do not depend on timing."""

    before_first: Callable[[], object] = int

    def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
        if not self.examined:
            self.before_first()
        return super().examine(candidate, champion_us)


def meet(places: Path) -> None:
    """Waits until two processes have arrived."""
    (places / f"here-{os.getpid()}").touch()
    end_s = time.monotonic() + _PATIENCE_S
    while len(list(places.glob("here-*"))) < 2 and time.monotonic() < end_s:
        time.sleep(0.005)


def main(database: str, folder: str, budget: int, seed: int, together: str) -> None:
    """Entry point of a process that runs a search, alone or beside another one."""
    space = build_space(Path(folder))
    settings = SearchSettings(budget=budget, seed=seed)
    with Leaderboard(database) as board:
        compiler = SyntheticCompiler(code_of=unroll_is_dead, fault_of=many_faults)
        begin = partial(meet, Path(together)) if together else int
        examiner = PacedExaminer(fault_of=many_faults, slow_s=0.004, before_first=begin)
        search, _ = open_search(board, space, settings, compiler, examiner, log_trials=True)
        print("ready", flush=True)
        result = search.run()
    print(result.stop.name, result.progress.evaluated, result.progress.new, flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
