"""Simulation of the warps of one SM: agents run programs of operations and share the pipes of the SM.

An *agent* is a group of warps that run in step, one on each scheduler of the SM: a warpgroup, or a thread that starts
copies. Its program is an iterator of operations:

===================  ===================================================================================================
operation            effect
===================  ===================================================================================================
:class:`Run`         the agent executes instructions until they are done
:class:`Product`     the tensor cores get work, and the agent goes on
:class:`Drain`       waits until all but the last ``pending`` products of the agent are done
:class:`Copy`        starts an asynchronous copy, which signals an event when its bytes are there; the agent goes on
:class:`Signal`      increments an event
:class:`Wait`        waits until an event has been signalled a number of times
:class:`Mark`        records the time
===================  ===================================================================================================

Every mechanism of synchronisation is an event: the full and empty barriers of a ring, a turn of ping-pong, a barrier
of several warpgroups. Resources are shared as a fluid: a job that runs alone takes ``alone`` clocks and uses a share of
each of its resources. Where the shares of all running jobs add up to more than a resource has, the jobs on it slow down
by the same factor. The tensor cores execute one product at a time, in the order in which they were started. The path
from L2 carries one copy at a time in the same way: the first tile of a ring does not wait for those behind it.

This module is independent of kernels: :mod:`evoengine.costmodel.simulated_families` writes the programs.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from evoengine.errors import DefectError

_DONE: Final = 1e-9
"""Share of a job that counts as nothing: rounding."""


class Resource(enum.IntEnum):
    """Resource that jobs share: a pipe of one scheduler, which stands for all four, or one of the whole SM."""

    TENSOR = 0
    ISSUE = 1
    """Issue slots and register ports of a scheduler."""
    MUFU = 2
    """Special functions and conversions."""
    SHARED = 3
    """Shared memory."""
    COPY = 4
    """Path from L2 to the SM."""


_REMEMBERED_JOBS: Final = 4096
"""Cached jobs: the agents of a simulation have the same jobs, and many configs share them."""
_REMEMBERED_SETS: Final = 2**15
"""Cached sets of jobs that run at once; a loop over tiles repeats few of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Work that takes time; one object may be used by many operations."""

    alone: float
    """Clocks when nothing else runs."""
    shares: tuple[tuple[int, float], ...] = ()
    """Pairs (resource, share of it that the job uses when it runs alone)."""


@lru_cache(_REMEMBERED_JOBS)
def make_job(latency: float = 0.0, **clocks: float) -> Job:
    """Makes a job from the clocks for which it keeps each resource busy; equal arguments give the same object.

    Args:
        latency: Clocks in addition to those of the busiest resource.
        **clocks: Busy clocks by the lower-case name of a resource.
    """
    times = {Resource[name.upper()]: value for name, value in clocks.items() if value > 0}
    alone = latency + max(times.values(), default=0.0)
    return Job(alone, tuple((int(one), value / alone) for one, value in times.items()))


@dataclass(frozen=True, slots=True)
class Run:
    """Executes instructions; the agent waits."""

    job: Job


@dataclass(frozen=True, slots=True)
class Product:
    """Starts work of the tensor cores."""

    job: Job


@dataclass(frozen=True, slots=True)
class Drain:
    """Waits until at most ``pending`` products of the agent are not done."""

    pending: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Starts a copy, which signals ``event`` when it is done."""

    clocks: float
    """Time for which it has the path from L2 to the SM to itself."""
    latency: float
    """Time from there until its bytes can be read."""
    event: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Increments an event."""

    event: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits until ``event`` has been signalled ``count`` times."""

    event: int
    count: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Records the time."""


Operation = Run | Product | Drain | Copy | Signal | Wait | Mark
Program = Iterator[Operation]


@dataclass(frozen=True)
class Timeline:
    """Result of a simulation."""

    clocks: float
    """Time at which the last job ended."""
    marks: tuple[tuple[float, ...], ...]
    """Times of the marks of each agent."""
    busy: tuple[float, ...]
    """Clocks of work that each resource did, by :class:`Resource`."""


@dataclass(slots=True, eq=False)
class _Agent:
    program: Program
    products: int = 0
    """Products that are not done."""
    blocked: Operation | None = None
    marks: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Running:
    """Job that was started; ``operation`` determines what follows its end."""

    job: Job
    agent: _Agent
    operation: Run | Product
    left: float
    """Clocks that are left if the job runs alone."""


def busy_clocks(programs: Iterable[Program], resource: Resource) -> float:
    """Adds up the clocks for which the instructions of programs keep a resource busy, without products and copies."""
    jobs = [operation.job for program in programs for operation in program if isinstance(operation, Run)]
    return sum(job.alone * share for job in jobs for one, share in job.shares if one == resource)


def simulate(programs: Sequence[Program], events: int) -> Timeline:
    """Runs the programs of the agents of one SM to their ends.

    Args:
        programs: Program of each agent.
        events: Number of events that the programs use, numbered from 0.

    Raises:
        DefectError: The agents wait for each other.
    """
    return _Simulation(programs, events).run()


@lru_cache(_REMEMBERED_SETS)
def _slowdowns(jobs: tuple[Job, ...]) -> tuple[float, ...]:
    """Computes the factor by which each of the jobs that run at once is slower than alone."""
    used = [0.0] * len(Resource)
    for job in jobs:
        for resource, share in job.shares:
            used[resource] += share
    return tuple([max([1.0, *[used[resource] for resource, _ in job.shares]]) for job in jobs])


class _Simulation:
    def __init__(self, programs: Sequence[Program], events: int) -> None:
        self._agents = [_Agent(program) for program in programs]
        self._events = [0] * events
        self._waiting: list[list[_Agent]] = [[] for _ in range(events)]
        self._running: list[_Running] = []
        self._products: deque[_Running] = deque()
        """Products that are not done; the first one runs."""
        self._clock = 0.0
        self._busy = [0.0] * len(Resource)
        self._path_free = 0.0
        """Time at which the path from L2 has carried all copies that were started."""
        self._arrivals: list[tuple[float, int, int]] = []
        """Heap of the copies that are not done: time, number, event."""
        self._copies = 0

    def run(self) -> Timeline:
        for agent in self._agents:
            self._continue(agent)
        while self._running or self._arrivals:
            self._advance()
        if any(agent.blocked is not None for agent in self._agents):
            raise DefectError("the agents of a simulated SM wait for each other")
        return Timeline(self._clock, tuple(tuple(agent.marks) for agent in self._agents), tuple(self._busy))

    def _continue(self, agent: _Agent) -> None:
        """Executes the program of an agent until it has to wait."""
        agent.blocked = None
        for operation in agent.program:
            if isinstance(operation, Wait):
                if self._events[operation.event] < operation.count:
                    self._waiting[operation.event].append(agent)
                    agent.blocked = operation
                    return
            elif isinstance(operation, Signal):
                self._signal(operation.event)
            elif isinstance(operation, Run):
                self._running.append(_Running(operation.job, agent, operation, operation.job.alone))
                agent.blocked = operation
                return
            elif isinstance(operation, Drain):
                if agent.products > operation.pending:
                    agent.blocked = operation
                    return
            elif isinstance(operation, Product):
                agent.products += 1
                self._products.append(_Running(operation.job, agent, operation, operation.job.alone))
                if len(self._products) == 1:
                    self._running.append(self._products[0])
            elif isinstance(operation, Copy):
                self._start_copy(operation)
            else:
                agent.marks.append(self._clock)

    def _start_copy(self, copy: Copy) -> None:
        self._path_free = max(self._path_free, self._clock) + copy.clocks
        self._busy[Resource.COPY] += copy.clocks
        self._copies += 1
        heapq.heappush(self._arrivals, (self._path_free + copy.latency, self._copies, copy.event))

    def _signal(self, event: int) -> None:
        self._events[event] += 1
        waiting, self._waiting[event] = self._waiting[event], []
        for agent in waiting:
            assert isinstance(agent.blocked, Wait)
            if self._events[event] >= agent.blocked.count:
                self._continue(agent)
            else:
                self._waiting[event].append(agent)

    def _advance(self) -> None:
        """Lets time pass until a job or a copy is done."""
        running, busy, arrivals = self._running, self._busy, self._arrivals
        slow = _slowdowns(tuple([one.job for one in running]))
        step = min([one.left * factor for one, factor in zip(running, slow, strict=True)], default=math.inf)
        until_arrival = arrivals[0][0] - self._clock if arrivals else math.inf
        step = min(step, until_arrival)
        self._clock += step
        done: list[_Running] = []
        others: list[_Running] = []
        for one, factor in zip(running, slow, strict=True):
            one.left -= step / factor
            (done if one.left <= _DONE * one.job.alone else others).append(one)
        self._running = others
        for one in done:
            for resource, share in one.job.shares:
                busy[resource] += share * one.job.alone
            self._end(one)
        while arrivals and arrivals[0][0] <= self._clock:
            self._signal(heapq.heappop(arrivals)[2])

    def _end(self, one: _Running) -> None:
        agent = one.agent
        match one.operation:
            case Run():
                self._continue(agent)
            case Product():
                self._products.popleft()
                if self._products:
                    self._running.append(self._products[0])
                agent.products -= 1
                if isinstance(agent.blocked, Drain) and agent.products <= agent.blocked.pending:
                    self._continue(agent)
