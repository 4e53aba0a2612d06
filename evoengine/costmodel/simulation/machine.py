"""Simulation of the warps of one SM: agents run programs of operations and share the pipes of the SM.

An *agent* is a group of warps that run in step, one on each scheduler of the SM: a warpgroup, or a thread that starts
copies. Its program is an iterator of operations:

===================  ===================================================================================================
operation            effect
===================  ===================================================================================================
:class:`Run`         the agent executes instructions until they are done
:class:`Product`     the tensor cores get work, and the agent goes on; products of one agent run one after the other
:class:`Drain`       waits until all but the last ``pending`` products of the agent are done
:class:`Copy`        starts an asynchronous copy, which signals an event when its bytes are there; the agent goes on
:class:`Signal`      increments an event
:class:`Wait`        waits until an event has been signalled a number of times
===================  ===================================================================================================

Every mechanism of synchronisation is an event: the full and empty barriers of a ring, a turn of ping-pong, a barrier
of several warpgroups. Resources are shared as a fluid: a job that is alone takes ``alone`` clocks and keeps each of its
pipes busy for a share of that time. Where the shares of the running jobs add up to more than a pipe has, all jobs on it
are slowed down by the same factor. The tensor cores run products in the order in which they were started.

Nothing here knows about a kernel: families state their programs (:mod:`evoengine.costmodel.simulation.hopper`).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from evoengine.errors import DefectError

import os

_DONE: Final = 1e-9
"""Share of a job that counts as nothing: rounding."""


class Resource(enum.IntEnum):
    """Pipe that jobs share: of one scheduler, all four of which do the same, or of the SM."""

    TENSOR = 0
    ISSUE = 1
    MUFU = 2
    ALU = 3
    SHARED = 4
    COPY = 5
    CONVERT = 6
    FMA = 7
    """Path from L2 to shared memory."""


@dataclass(frozen=True, slots=True)
class Job:
    """Work that takes time."""

    alone: float
    """Clocks when nothing else runs."""
    shares: tuple[tuple[int, float], ...]
    """Pairs (resource, share of its rate that the job takes when it runs alone)."""


def job(latency: float = 0.0, pace: float = 1.0, /, **clocks: float) -> Job:
    """Makes a job from the clocks for which it keeps each resource busy.

    Args:
        latency: Clocks in addition to those of the busiest resource.
        pace: Clocks between two instructions of one warp that runs alone.
        **clocks: Busy clocks by the lower-case name of a resource.
    """
    times = {Resource[name.upper()]: value for name, value in clocks.items() if value > 0}
    busiest = max((value * (pace if one is Resource.ISSUE else 1.0) for one, value in times.items()), default=0.0)
    alone = latency + busiest
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

    job: Job
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
    """Time at which the last agent ended."""
    marks: tuple[tuple[float, ...], ...]
    """Times of the marks of each agent."""
    busy: tuple[float, ...]
    """Clocks for which each resource was busy, by :class:`Resource`."""


@dataclass(slots=True, eq=False)
class _Agent:
    program: Program
    products: int = 0
    """Products that are not done."""
    blocked: Operation | None = None
    marks: list[float] = field(default_factory=list)
    queue: deque[_Running] = field(default_factory=deque)
    """Products, the running one first."""


@dataclass(slots=True, eq=False)
class _Running:
    job: Job
    agent: _Agent
    left: float
    """Clocks that are left if the job runs alone."""
    kind: type
    event: int = -1
    age: float = 0.0


def simulate(programs: Sequence[Program], events: int, eldest: float = 0.0) -> Timeline:
    """Runs the programs of the agents of one SM to their ends.

    Args:
        programs: Program of each agent.
        events: Number of events that the programs use, numbered from 0.

    Raises:
        DefectError: The agents wait for each other.
    """
    return _Simulation(programs, events, eldest).run()


def _age(one: _Running) -> float:
    return one.age


class _Simulation:
    def __init__(self, programs: Sequence[Program], events: int, eldest: float) -> None:
        self._eldest = eldest
        self._agents = [_Agent(program) for program in programs]
        self._events = [0] * events
        self._waiting: list[list[_Agent]] = [[] for _ in range(events)]
        self._running: list[_Running] = []
        self._clock = 0.0
        self._busy = [0.0] * len(Resource)

    def run(self) -> Timeline:
        for agent in self._agents:
            self._go_on(agent)
        while self._running:
            self._advance()
        if any(agent.blocked is not None for agent in self._agents):
            raise DefectError("the agents of a simulated SM wait for each other")
        return Timeline(self._clock, tuple(tuple(agent.marks) for agent in self._agents), tuple(self._busy))

    def _go_on(self, agent: _Agent) -> None:
        """Executes the program of an agent until it has to wait."""
        agent.blocked = None
        for operation in agent.program:
            kind = type(operation)
            if kind is Run:
                self._running.append(_Running(operation.job, agent, operation.job.alone, Run))
            elif kind is Wait:
                if self._events[operation.event] >= operation.count:
                    continue
                self._waiting[operation.event].append(agent)
            elif kind is Drain:
                if agent.products <= operation.pending:
                    continue
            else:
                self._start(agent, operation)
                continue
            agent.blocked = operation
            return

    def _start(self, agent: _Agent, operation: Operation) -> None:
        """Executes an operation that takes no time of the agent."""
        if isinstance(operation, Signal):
            self._signal(operation.event)
        elif isinstance(operation, Product):
            agent.products += 1
            made = _Running(operation.job, agent, operation.job.alone, Product, age=self._clock)
            agent.queue.append(made)
            if len(agent.queue) == 1:
                self._running.append(made)
        elif isinstance(operation, Copy):
            self._running.append(_Running(operation.job, agent, operation.job.alone, Copy, operation.event))
        else:
            agent.marks.append(self._clock)

    def _signal(self, event: int) -> None:
        self._events[event] += 1
        waiting, self._waiting[event] = self._waiting[event], []
        for agent in waiting:
            assert isinstance(agent.blocked, Wait)
            if self._events[event] >= agent.blocked.count:
                self._go_on(agent)
            else:
                self._waiting[event].append(agent)

    def _advance(self) -> None:
        """Lets time pass until a job is done."""
        running = self._running
        used = [0.0] * len(Resource)
        for one in running:
            for resource, share in one.job.shares:
                used[resource] += share
        over = {resource: total for resource, total in enumerate(used) if total > 1.0}
        products = [one for one in running if one.kind is Product] if used[0] > 1.0 else []
        oldest = min(products, key=_age) if len(products) > 1 else None
        if oldest is not None:
            share = max(self._eldest, 1 / len(products))
            other = (1 - share) / (len(products) - 1)
        slow = [1.0] * len(running)
        if over:
            for place, one in enumerate(running):
                for resource, mine in one.job.shares:
                    if resource == 0 and oldest is not None:
                        slow[place] = max(slow[place], mine / max(1e-6, share if one is oldest else other))
                    elif resource in over:
                        slow[place] = max(slow[place], over[resource])
        step = min(one.left * by for one, by in zip(running, slow, strict=True))
        self._clock += step
        for resource, total in enumerate(used):
            self._busy[resource] += min(1.0, total) * step
        done = []
        for one, by in zip(running, slow, strict=True):
            one.left -= step / by
            if one.left <= _DONE * one.job.alone:
                done.append(one)
        if done:
            self._running = [one for one in running if one not in done]
        for one in done:
            self._end(one)

    def _end(self, one: _Running) -> None:
        agent = one.agent
        if one.kind is Run:
            self._go_on(agent)
        elif one.kind is Copy:
            self._signal(one.event)
        else:
            agent.queue.popleft()
            if agent.queue:
                self._running.append(agent.queue[0])
            agent.products -= 1
            if isinstance(agent.blocked, Drain) and agent.products <= agent.blocked.pending:
                self._go_on(agent)
