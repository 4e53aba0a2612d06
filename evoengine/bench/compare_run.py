"""Runs a comparison in processes of its own, so that no library can end it.

1. Each kernel is prepared and checked alone, in one process after another. A kernel that crashes, hangs, faults or is
   not supported there becomes a row with the reason.
2. All others are prepared again in one process and timed there interleaved. A kernel that was running when that
   process failed becomes a row, and the process starts again without it.

This process uses no GPU.
"""

from __future__ import annotations

import getpass
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from evoengine.bench.compare_job import OURS, CompareJob, PeerCheck, Prepared
from evoengine.bench.compare_result import Finding, PeerStatus
from evoengine.bench.compare_worker import CompareWorker
from evoengine.bench.peer_protocol import first_line
from evoengine.device.workers.pool import HeadStart
from evoengine.device.workers.single_worker import SingleWorker
from evoengine.errors import CandidateTimeoutError, EvoEngineError, MissingDependencyError, WorkerCrashError

_MODULES: Final = ("evoengine.bench.compare_worker", "evoengine.parity.compare", "cupy", "torch")
_TIMING: Final = "timing"
_INDUCTOR_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class CompareProgress:
    """Callbacks for the progress of a comparison."""

    announce: Callable[[str], object] = lambda _text: None
    """Receives the name of each kernel before it is prepared alone, ``timing``, and a line about each restart."""
    output: Callable[[str, str], object] = lambda _name, _text: None
    """Receives a process's name and everything that it printed, when it has ended."""


def require_torch_cuda() -> str:
    """Returns the version of torch, which must be able to use the GPU.

    Raises:
        MissingDependencyError: torch has no CUDA, or finds no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise MissingDependencyError(
            f"torch {torch.__version__} cannot use a GPU, which compare needs: install a CUDA build of torch, "
            "'python -m evoengine doctor' shows the driver"
        )
    return str(torch.__version__)


def begin_imports() -> HeadStart:
    """Starts the imports of a comparison's processes, before it is known what they compare."""
    return HeadStart("compare", _MODULES)


def measure(job: CompareJob, progress: CompareProgress, start: HeadStart | None = None) -> tuple[Finding, ...]:
    """Prepares, checks and times our kernel and all peers on the same inputs.

    The thread that calls this must also have created ``start``.

    Args:
        job: The kernels, and how they are timed.
        progress: Receivers of progress.
        start: Imports that were started before; they are closed here.

    Returns:
        One finding per kernel, ours first.
    """
    with closing(start or begin_imports()) as started:
        started.fork_server.set_factory(partial(CompareWorker, job))
        runner = _Runner(job, progress, started)
        alone = {name: runner.alone(name) for name in (OURS, *(peer.name for peer in job.peers))}
        timed = runner.together({name: one for name, one in alone.items() if one.runs})
    return tuple(timed.get(name, one.finding) for name, one in alone.items())


@dataclass(frozen=True)
class _Alone:
    """Result of a kernel in a process of its own."""

    finding: Finding
    tuned: str = ""

    @property
    def runs(self) -> bool:
        return self.finding.outcome in (PeerStatus.OK, PeerStatus.WRONG)


class _TogetherError(Exception):
    """The process in which all kernels are timed has failed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        """Kernel that was running; empty if none was."""


class _Runner:
    """Starts one process after another and requests results from it."""

    def __init__(self, job: CompareJob, progress: CompareProgress, start: HeadStart) -> None:
        self._job = job
        self._limits = job.limits
        self._progress = progress
        self._start = start
        self._folders = (Path(start.folder, f"compare-{number}") for number in itertools.count())
        self._environment = _shared_caches()

    def alone(self, name: str) -> _Alone:
        """Prepares and checks one kernel in a process of its own; any failure becomes its row."""
        self._progress.announce(name)
        began = time.monotonic()
        found = self._alone(name)
        return replace(found, finding=replace(found.finding, prepare_s=time.monotonic() - began))

    def _alone(self, name: str) -> _Alone:
        finding = Finding(name, PeerStatus.OK, ours=name == OURS)
        try:
            with self._process(name) as process:
                prepared = self._prepare(process, name, "")
                if prepared.unavailable:
                    return _Alone(replace(finding, outcome=PeerStatus.UNAVAILABLE, note=prepared.note))
                checked: PeerCheck = process.call("verify", name, kind=PeerCheck, limit_s=self._limits.check_s)
        except EvoEngineError as error:
            return _Alone(replace(finding, outcome=PeerStatus.FAILED, note=str(error)))
        return _Alone(_checked(replace(finding, note=prepared.note), checked), prepared.tuned)

    def together(self, left: Mapping[str, _Alone]) -> dict[str, Finding]:
        """Times all kernels in one process; one that is running when that process fails is dropped.

        Returns:
            The findings of all these kernels.
        """
        left, lost = dict(left), dict[str, Finding]()
        while left:
            self._progress.announce(_TIMING)
            try:
                return lost | self._time(left)
            except _TogetherError as error:
                blamed = [error.name] if error.name in left else list(left)
                for name in blamed:
                    note = f"{error}; seen while it ran beside {len(left) - 1} others, after it had worked alone"
                    lost[name] = replace(left[name].finding, outcome=PeerStatus.FAILED, note=note, max_error=None)
                for name in blamed:
                    del left[name]
                if left:
                    self._progress.announce(f"{error.name} failed beside the others: starting again without it")
        return lost

    def _time(self, kernels: Mapping[str, _Alone]) -> dict[str, Finding]:
        """One process: prepares all kernels, times them interleaved, then checks what the timed calls computed."""
        limits, subject = self._limits, ""
        try:
            with self._process(_TIMING) as process:
                try:
                    prepared = {name: self._prepare(process, name, one.tuned) for name, one in kernels.items()}
                    kind = tuple[tuple[float, ...], ...]
                    sampled = process.call("sample", kind=kind, limit_s=limits.sample_s)
                    checked = {
                        name: process.call("verify", name, kind=PeerCheck, limit_s=limits.check_s) for name in kernels
                    }
                except EvoEngineError:
                    subject = process.subject
                    raise
        except EvoEngineError as error:
            raise _TogetherError(subject, str(error)) from error
        return {
            name: replace(
                _checked_again(kernels[name].finding, checked[name]),
                samples_us=samples_us,
                host_us=prepared[name].host_us,
            )
            for name, samples_us in zip(kernels, sampled, strict=True)
        }

    def _prepare(self, process: SingleWorker, name: str, tuned: str) -> Prepared:
        prepared: Prepared = process.call("prepare", name, tuned, kind=Prepared, limit_s=self._limits.prepare_s)
        return prepared

    @contextmanager
    def _process(self, name: str) -> Iterator[SingleWorker]:
        """Starts a process for kernels; an error for its death or its time limit includes its last line of output."""
        folder = next(self._folders)
        folder.mkdir()
        process = SingleWorker(self._start.fork_server, name, folder, self._environment, self._limits.start_s)
        try:
            with closing(process):
                yield process
        except (WorkerCrashError, CandidateTimeoutError) as error:
            raise type(error)(_with_last_line(error, process.output)) from error
        finally:
            self._progress.output(name, process.output)


def _checked(finding: Finding, checked: PeerCheck) -> Finding:
    if checked.reason:
        note = f"{checked.reason} ({finding.note})" if finding.note else checked.reason
        return replace(finding, outcome=PeerStatus.WRONG, note=note, max_error=checked.max_error)
    return replace(finding, max_error=checked.max_error)


def _checked_again(finding: Finding, checked: PeerCheck) -> Finding:
    """Adds the check after timing; the note of a kernel that is wrong only beside others states this."""
    if checked.reason and finding.outcome is PeerStatus.OK:
        return _checked(finding, replace(checked, reason=f"beside the others only: {checked.reason}"))
    return replace(finding, max_error=checked.max_error if not checked.reason else finding.max_error)


def _with_last_line(error: EvoEngineError, output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return f"{error}; its last output: {first_line(ValueError(lines[-1]))}" if lines else str(error)


def _shared_caches() -> dict[str, str]:
    """Variables that let a process reuse what an earlier one compiled.

    Triton's cache is in the home directory. Inductor's is below the folder for temporary files, which is another one
    for every comparison unless it is set.
    """
    usual = Path(tempfile.gettempdir(), f"torchinductor_{_user_name()}")
    return {_INDUCTOR_CACHE: os.environ.get(_INDUCTOR_CACHE) or str(usual)}


def _user_name() -> str:
    """Returns the user's name; the user id for a user without a passwd entry, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return str(os.getuid())
