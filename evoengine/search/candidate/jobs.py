"""Jobs that a search submits, and the service that runs them.

A job is a record of one kind of work; its type parameter is the type of the result. Each kind names the method that
answers it, so that worker processes, replays and tests share one dispatch (:func:`perform`).
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from evoengine.model import Config, Duel, Variant
from evoengine.search.candidate.results import (
    Admission,
    Candidate,
    Compilation,
    Examination,
    Inspection,
    WorkEstimate,
)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Job(Generic[ResultT]):
    """One piece of work; picklable."""

    method: ClassVar[str]
    """Name of the worker's method that answers it; the fields are the arguments, in order."""

    @property
    def arguments(self) -> tuple[object, ...]:
        """Arguments of the method."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def tag(self) -> str:
        """Subject of the job, shown as the name of the worker process."""
        return ""


@dataclass(frozen=True)
class Compile(Job[Compilation]):
    """Renders and compiles a config for every problem. A fault of the candidate is a status of the result."""

    method: ClassVar[str] = "build"
    config: Config

    @property
    def tag(self) -> str:
        return self.config.key


@dataclass(frozen=True)
class CompileVariant(Compile):
    """Like :class:`Compile`, for a config of a variant that the compiler may not know yet."""

    method: ClassVar[str] = "build_variant"
    variant: Variant


@dataclass(frozen=True)
class _CandidateJob(Job[ResultT]):
    candidate: Candidate

    @property
    def tag(self) -> str:
        return self.candidate.config.key


@dataclass(frozen=True)
class Admit(_CandidateJob[Admission]):
    """Emulates a candidate whose source is untrusted, before a GPU runs it."""

    method: ClassVar[str] = "admit"


@dataclass(frozen=True)
class Examine(_CandidateJob[Examination]):
    """Runs the parity gate and times a candidate. A fault of the candidate is a status of the result."""

    method: ClassVar[str] = "examine"
    champion_us: float | None = None
    """Time to beat: of the champion, the pending leader, or the fastest row that may be elected.

    A candidate that cannot beat it may be pruned.
    """


@dataclass(frozen=True)
class EstimateWork(_CandidateJob[WorkEstimate | None]):
    """Estimates how long a device that predicts will examine a candidate; None for a fast kernel."""

    method: ClassVar[str] = "estimate_work"


@dataclass(frozen=True)
class Challenge(Job[Duel]):
    """Times two examined candidates in interleaved pairs."""

    method: ClassVar[str] = "challenge"
    challenger: Candidate
    champion: Candidate


@dataclass(frozen=True)
class Inspect(_CandidateJob[Inspection]):
    """Checks a candidate that is about to lead. A DefectError means that no verdict of this search is reliable."""

    method: ClassVar[str] = "inspect"


@dataclass(frozen=True)
class InspectAhead(_CandidateJob[Inspection]):
    """Runs the part of :class:`Inspect` that needs no GPU. An :class:`Inspect` of the same kernel uses its result."""

    method: ClassVar[str] = "inspect_ahead"


@dataclass(frozen=True)
class StartSanitizer(Job[None]):
    """Starts compute-sanitizer ahead of the next :class:`Sanitize`, while the device continues."""

    method: ClassVar[str] = "start_sanitizer"

    @property
    def tag(self) -> str:
        return "compute-sanitizer"


@dataclass(frozen=True)
class Sanitize(_CandidateJob[Inspection]):
    """Checks the leading candidate with compute-sanitizer, for which its device stops timing."""

    method: ClassVar[str] = "sanitize"


@dataclass(frozen=True)
class MeasureEnergy(_CandidateJob[float | None]):
    """Measures the microjoules per call of an examined candidate; None where the GPU does not report them."""

    method: ClassVar[str] = "measure_energy"


class JobService(Protocol):
    """Runs jobs: in worker processes, or at once from a recording."""

    @property
    def workers(self) -> int:
        """Jobs that it works on at the same time."""

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each worker that was given up, oldest first."""

    def supports(self, kind: type[Job[Any]]) -> bool:
        """Whether it runs jobs of this kind."""

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        """Starts a job. An exception of the future means that the job could not be done, such as for a lost worker."""


def perform(worker: object, job: Job[ResultT]) -> ResultT:
    """Calls the method of `worker` that answers a job."""
    result: ResultT = getattr(worker, job.method)(*job.arguments)
    return result
