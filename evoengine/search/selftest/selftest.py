"""The self-test of the parity gate: known-wrong kernels (mutants) must fail it, control kernels must pass.

A mutant is killed when the gate rejects it or its run faults. A mutant whose edit does not match the template, or that
does not compile, is a defect of the self-test. A mutant of a kernel that fails unchanged would prove nothing, so every
kernel that mutants are made from also runs unchanged, as a control.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.device.device_selfcheck import check_device
from evoengine.device.protocols import StopwatchOptions, TimedKernel
from evoengine.device.workers.pool import WorkerPool
from evoengine.errors import CandidateError, DefectError, ResourceError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import resource_gate
from evoengine.kernel.template.renderer import Template, TemplateLibrary
from evoengine.model import Config, Problem, Status
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.mutants import SETUPS
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, mutate
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.search.selftest.gate_controls import PROBLEMS, draw_controls
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

CASE_FLOPS: Final = 10**8
"""Floating-point operations of a problem's own case."""

_DRAWS: Final = 4
"""Number of input sets for the configs of one problem."""
_REPLAYED_CALLS: Final = 40
"""Kernel calls in the CUDA graph that is replayed on a measuring device: mutants may be wrong in late calls only."""
_IN_FLIGHT: Final = 32


@dataclass(frozen=True)
class SelftestTrial:
    """A kernel to run through the gate."""

    name: str
    """Name of the mutant, of its setup, or of the problem."""
    problem: Problem
    config: Config
    seed: int
    """Seed of the inputs."""
    edits: tuple[MutantEdit, ...] = ()
    """Source edits of a mutant; empty for a control."""


@dataclass(frozen=True)
class GateDecision:
    """The gate's decision on a kernel."""

    passed: bool
    reason: str


class SelftestVerdict(enum.Enum):
    """Verdict of the self-test on one kernel."""

    PASSED = "passed"
    REJECTED = "rejected"
    DEFECT = "defect"
    """The kernel did not reach a device, so nothing was tested."""


@dataclass(frozen=True)
class SelftestResult:
    """A trial and its verdict."""

    trial: SelftestTrial
    verdict: SelftestVerdict
    status: Status
    """Status of the failure; OK where it passed."""
    reason: str


def mutant_trials(mutants: Sequence[Mutant], seed: int) -> list[SelftestTrial]:
    """Returns the trials of mutants, grouped by setup."""
    order = list(SETUPS)
    chosen = sorted(mutants, key=lambda mutant: order.index(mutant.setup))
    return [SelftestTrial(m.name, *_parts(m.setup), seed, m.edits) for m in chosen]


def setup_trials(mutants: Sequence[Mutant], seed: int) -> list[SelftestTrial]:
    """Returns the trials of the unchanged kernels that mutants are made from."""
    used = {mutant.setup for mutant in mutants}
    return [SelftestTrial(name, *_parts(name), seed) for name in SETUPS if name in used]


def runnable(mutants: Sequence[Mutant], families: tuple[str, ...], arch: str) -> tuple[Mutant, ...]:
    """Selects the mutants of families that are present and support an architecture.

    Args:
        mutants: Mutants to choose from.
        families: Families in the data folder.
        arch: Architecture that kernels are compiled for.
    """
    library = TemplateLibrary(*data_dirs("templates"))
    templates = {family: library.load(family) for family in families}

    def runs(mutant: Mutant) -> bool:
        setup = SETUPS[mutant.setup]
        template = templates.get(setup.family)
        return template is not None and template.supports(setup.problem, arch) is None

    return tuple(mutant for mutant in mutants if runs(mutant))


def control_trials(families: tuple[str, ...], target: Target, count: int, seed: int) -> list[SelftestTrial]:
    """Trials of random valid configs, grouped by problem."""
    drawn = draw_controls(families, target, count, seed)
    return [
        SelftestTrial(name, PROBLEMS[name], config, seed + turn % _DRAWS) for turn, (name, config) in enumerate(drawn)
    ]


def _parts(name: str) -> tuple[Problem, Config]:
    setup = SETUPS[name]
    return setup.problem, find_space(setup.family).config(setup.values)


class TrialBuilder:
    """Builds the kernels of trials, in a compile worker; it needs no device.

    Args:
        target: Target GPU, with the architecture to compile for.
        arch: Architecture to compile for.
        cache_dir: Folder of the compile cache; None for no cache.
    """

    def __init__(self, target: Target, arch: str, cache_dir: Path | None) -> None:
        self._target = target
        self._arch = arch
        self._library = TemplateLibrary(*data_dirs("templates"))
        self._families: dict[str, tuple[Template, SearchSpace]] = {}
        self._compiler = Compiler(cache_dir)

    def build(self, trial: SelftestTrial) -> Kernel:
        """Renders, edits and compiles a kernel.

        Raises:
            DefectError: An edit does not match the template.
            CandidateError: The kernel does not compile, or does not fit on the GPU.
        """
        template, space = self._family(trial.config.family)
        source = mutate(template.render(trial.config, trial.problem, space, self._target), trial.edits)
        binary = self._compiler.compile(source, self._arch)
        excess = resource_gate(binary, source.launch, self._target)
        if excess is not None:
            raise ResourceError(excess)
        return Kernel(source, binary)

    def _family(self, name: str) -> tuple[Template, SearchSpace]:
        if name not in self._families:
            self._families[name] = (self._library.load(name), find_space(name))
        return self._families[name]


class TrialJudge:
    """Runs kernels through the gate on one device, in a device worker.

    Args:
        spec: Description of the device.
        known_good: Kernel that checks the device after a worker was lost.
    """

    def __init__(self, spec: DeviceSpec, known_good: Kernel) -> None:
        self._device = open_device(spec)
        self._known_good = known_good

    @property
    def healthy(self) -> bool:
        """False once a mutant has made the device unusable in this process."""
        return self._device.healthy

    def check(self) -> None:
        """Runs the known-good kernel.

        Raises:
            CandidateError: The device does not work.
        """
        check_device(self._device, self._known_good)

    def judge(self, trial: SelftestTrial, kernel: Kernel) -> GateDecision:
        """Runs a kernel through the gate on the trial's inputs; on a measuring device also as it is timed.

        Raises:
            CandidateError: The kernel faulted.
        """
        cases = _cases(trial.problem, trial.seed)
        with closing(self._device.load(kernel)) as loaded:
            verdict = run_gate(loaded, cases, trial.seed)
            if verdict.passed and isinstance(loaded, TimedKernel):
                with closing(loaded.stopwatch(cases[-1].inputs, StopwatchOptions(_REPLAYED_CALLS))) as watch:
                    replay = watch.replay(cases[-1].inputs)
                verdict = run_gate(loaded, cases[-1:], trial.seed, (replay,))
        return GateDecision(verdict.passed, verdict.reason)


@functools.lru_cache(maxsize=8)
def _cases(problem: Problem, seed: int) -> tuple[ParityCase, ...]:
    return draw_cases(problem, seed, CASE_FLOPS)


def run_trials(trials: Sequence[SelftestTrial], builders: WorkerPool, judges: WorkerPool) -> Iterator[SelftestResult]:
    """Builds and judges kernels concurrently; yields the results in order.

    Args:
        trials: Trials to run.
        builders: Workers with a :class:`TrialBuilder` each.
        judges: Workers with a :class:`TrialJudge` each.

    Raises:
        EvoEngineError: The failure is not caused by a trial: no worker is left, or a dependency is missing.
    """
    threads = ThreadPoolExecutor(_IN_FLIGHT)
    try:
        yield from threads.map(functools.partial(_run_trial, builders, judges), trials)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _run_trial(builders: WorkerPool, judges: WorkerPool, trial: SelftestTrial) -> SelftestResult:
    try:
        kernel: Kernel = builders.submit("build", trial, tag=trial.name).result()
    except DefectError as error:
        return SelftestResult(trial, SelftestVerdict.DEFECT, Status.RENDER_FAILED, str(error))
    except CandidateError as error:
        verdict = SelftestVerdict.DEFECT if trial.edits else SelftestVerdict.REJECTED
        return SelftestResult(trial, verdict, error.status, str(error))
    try:
        decision: GateDecision = judges.submit("judge", trial, kernel, tag=trial.name).result()
    except CandidateError as error:
        return SelftestResult(trial, SelftestVerdict.REJECTED, error.status, str(error))
    if decision.passed:
        return SelftestResult(trial, SelftestVerdict.PASSED, Status.OK, "")
    return SelftestResult(trial, SelftestVerdict.REJECTED, Status.PARITY_FAILED, decision.reason)
