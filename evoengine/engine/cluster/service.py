"""Jobs on the hosts of a cluster: one queue, whose jobs survive the loss of hosts.

The jobs of a host that ends run on another one, and each result is delivered once, because a lost host's answer can no
longer arrive. The host itself is replaced if its node is alive, and its workers check their device before they take new
work. Nodes that join are used.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from evoengine.engine.cluster.cluster import Cluster, Host
from evoengine.engine.cluster.host import Answer, HostFacts, MakeWorkers
from evoengine.engine.cluster.layout import HostSpec, Role
from evoengine.engine.workers.job_services import as_engine_error
from evoengine.errors import ClusterLostError, EvoEngineError, WorkerCrashError, WorkersLostError
from evoengine.search.candidate.jobs import Job, ResultT
from evoengine.search.candidate.results import Candidate

_AHEAD: Final = 2
"""Jobs that are sent to a host beyond its number of workers, so that no worker waits for the network."""
_MOST_LOSSES: Final = 3
"""Number of hosts lost during one job from which the job counts as their cause."""
TICK_S: Final = 0.5
_ATTEMPTS: Final = 4
"""Consecutive actors that may fail in one place before it is given up."""
PATIENCE_S: Final = 90.0
"""Longest time without any host, after which a search ends."""
_SHARED: Final = 64
"""Candidates that are kept in the object store, such as the champion, which every challenge needs."""
_CLOSE_S: Final = 20.0
_STOPPED: Final = "the search was stopped"


@dataclass(frozen=True)
class _Task:
    job: Job[Any]
    future: Future[Any]
    losses: int = 0


@dataclass
class _Seat:
    """A place for one actor on a node, and the actor that occupies it."""

    spec: HostSpec
    host: Host | None = None
    is_admitted: bool = False
    is_open: bool = False
    running: int = 0
    failures: int = 0
    retired: bool = False
    lost: tuple[str, ...] = ()
    resumes_s: float = 0.0
    """Time from which a new actor may be started."""

    @property
    def is_free(self) -> bool:
        return self.is_open and self.running < self.spec.size + _AHEAD


class ClusterService:
    """A :class:`~evoengine.search.candidate.jobs.JobService` on a cluster.

    One thread does everything; other threads and Ray's callbacks only put events into its queue.

    Args:
        cluster: Connection.
        role: Role of its hosts.
        on_gpu: Whether candidates run on GPUs.
        kinds: Kinds of jobs that it runs.
        make: Function that prepares the workers' factory, called in a thread of its own; its error fails every job.
        objection: Function that returns why a host with these facts cannot be used; an empty text if it can.
    """

    def __init__(
        self,
        cluster: Cluster,
        role: Role,
        *,
        on_gpu: bool,
        kinds: Collection[type[Job[Any]]],
        make: Callable[[], MakeWorkers],
        objection: Callable[[HostFacts], str],
    ) -> None:
        self._cluster, self._role, self._on_gpu = cluster, role, on_gpu
        self._kinds, self._objection = frozenset(kinds), objection
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._queue: deque[_Task] = deque()
        self._running: dict[Future[Any], _Task] = {}
        self._seats = {spec: _Seat(spec) for spec in self._cluster.plan(self._role, on_gpu=self._on_gpu)}
        self.workers = sum(spec.size for spec in self._seats)
        self.lost: tuple[str, ...] = ()
        self._left: tuple[str, ...] = ()
        self._shared: OrderedDict[str, Any] = OrderedDict()
        self._made: Any = None
        self._failure: EvoEngineError | None = None
        self._served_s = time.monotonic()
        self._closed = False
        self._closing = threading.Lock()
        self._preparer = ThreadPoolExecutor(1, f"prepare-{role}")
        self._preparer.submit(make).add_done_callback(self._later(self._prepared))
        self._thread = threading.Thread(target=self._work, name=f"cluster-{role}", daemon=True)
        self._thread.start()

    def supports(self, kind: type[Job[Any]]) -> bool:
        return kind in self._kinds

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        """Queues a job; it can be cancelled until a host has begun it. After :meth:`close` it fails at once."""
        future: Future[ResultT] = Future()
        with self._closing:  # an event after the one that ends the thread would never be handled
            if not self._closed:
                self._events.put(partial(self._accept, _Task(job, future)))
                return future
        future.set_exception(self._failure or WorkerCrashError(_STOPPED))
        return future

    def close(self) -> None:
        """Ends the hosts and fails the jobs under way; may be called twice."""
        with self._closing:
            self._closed = True
            self._events.put(None)
        self._thread.join(_CLOSE_S)  # a cluster that is lost must not delay it
        self._preparer.shutdown(wait=True)

    def _later(self, step: Callable[..., None], *arguments: Any) -> Callable[[Future[Any]], None]:
        """Returns a callback of a future that makes the thread call `step` with the arguments and the future."""
        return lambda done: self._events.put(partial(step, *arguments, done))

    def _work(self) -> None:
        try:
            self._handle_events()
            self._fail(WorkerCrashError(_STOPPED))
        except Exception as error:  # noqa: BLE001 - Ray raises errors of many types, and no job may wait for ever
            self._fail(as_engine_error(error))
            self._handle_events()
        for seat in self._seats.values():
            if seat.host is not None:
                seat.host.kill()

    def _handle_events(self) -> None:
        """Works until the service is closed."""
        next_s = 0.0
        while True:
            try:
                event = self._events.get(timeout=TICK_S)
            except Empty:
                event = lambda: None  # noqa: E731 - only time has passed
            if event is None:
                return
            event()
            if time.monotonic() >= next_s:
                self._maintain()
                next_s = time.monotonic() + TICK_S
            self._dispatch()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _accept(self, task: _Task) -> None:
        if self._failure is None:
            self._queue.append(task)
        elif task.future.set_running_or_notify_cancel():
            task.future.set_exception(self._failure)

    def _dispatch(self) -> None:
        """Gives queued jobs to the hosts that have the fewest per worker."""
        while self._queue:
            free = [seat for seat in self._seats.values() if seat.is_free]
            if not free:
                return
            task = self._queue.popleft()
            if not task.future.running() and not task.future.set_running_or_notify_cancel():
                continue
            seat = min(free, key=lambda one: one.running / one.spec.size)
            assert seat.host is not None, "an open seat has a host"
            try:
                answer = seat.host.run(type(task.job), *map(self._sent, task.job.arguments))
            except Exception as error:  # noqa: BLE001 - Ray raises errors of many types
                self._lose(seat, seat.host, _reason(error))
                self._again(task, _reason(error))
                continue
            seat.running += 1
            self._running[answer] = task
            answer.add_done_callback(self._later(self._take, seat, seat.host))

    def _sent(self, value: Any) -> Any:
        """Replaces a candidate by a reference, cached by its content's hash, so that each node receives it once."""
        if not isinstance(value, Candidate):
            return value
        parts = [f"{kernel.source.source_hash} {kernel.binary.code_hash}" for kernel in value.kernels]
        key = hashlib.sha256(" ".join([value.config.key, *parts]).encode()).hexdigest()
        if key not in self._shared:
            self._shared[key] = self._cluster.share(value)
        self._shared.move_to_end(key)
        while len(self._shared) > _SHARED:
            self._shared.popitem(last=False)
        return self._shared[key]

    def _take(self, seat: _Seat, host: Host, done: Future[Answer]) -> None:
        """Delivers an answer; the jobs of a lost host are queued again, before all others."""
        task = self._running.pop(done, None)
        if task is None:
            return  # its host was lost before
        error = done.exception()
        failure = None if error is not None else done.result().failure
        if error is not None:
            self._lose(seat, host, _reason(error))
            self._again(task, _reason(error))
            return
        if failure is not None and failure.kind == WorkersLostError.__name__:  # its GPU is quarantined, for example
            self._lose(seat, host, failure.text, retire=True)
            self._again(task, failure.text)
            return
        if seat.host is host:
            seat.running -= 1
            seat.failures = 0
            seat.lost = done.result().lost
            self._report()
        if failure is not None:
            task.future.set_exception(failure.error())
        else:
            task.future.set_result(done.result().result)

    def _again(self, task: _Task, reason: str) -> None:
        task = replace(task, losses=task.losses + 1)
        if self._failure is not None:
            task.future.set_exception(self._failure)
        elif task.losses >= _MOST_LOSSES:
            text = f"{task.losses} hosts of the cluster were lost during it: {reason}"
            task.future.set_exception(WorkerCrashError(text))
        else:
            self._queue.appendleft(task)

    def _fail(self, error: EvoEngineError) -> None:
        """Fails all jobs, also those that are submitted later."""
        self._failure = error
        tasks = [*self._running.values(), *self._queue]
        self._running.clear()
        self._queue.clear()
        for task in tasks:
            if task.future.running() or task.future.set_running_or_notify_cancel():
                task.future.set_exception(error)

    # -- hosts --------------------------------------------------------------------------------------------------------

    def _prepared(self, done: Future[MakeWorkers]) -> None:
        error = done.exception()
        if error is not None:
            self._fail(as_engine_error(error))
            return
        self._made = self._cluster.share(done.result())
        for seat in self._seats.values():
            self._open(seat)

    def _maintain(self) -> None:
        """Starts, replaces and gives up hosts."""
        if self._failure is not None:
            return
        if self._cluster.is_silent:
            self._fail(ClusterLostError("the head of the Ray cluster does not answer: restart the cluster"))
            return
        self._follow_nodes()
        for seat in self._seats.values():
            if seat.host is None and not seat.retired and seat.resumes_s <= time.monotonic():
                seat.host = self._cluster.start(seat.spec)
                seat.host.facts().add_done_callback(self._later(self._admit, seat, seat.host))
        self._give_up()

    def _follow_nodes(self) -> None:
        """Adds the places of new nodes, and removes those of nodes that ended or that now fall to another part."""
        planned = self._cluster.plan(self._role, on_gpu=self._on_gpu)
        for spec in planned:
            self._seats.setdefault(spec, _Seat(spec))
        for spec in self._seats.keys() - planned:
            seat = self._seats.pop(spec)
            seat.is_open = False
            if seat.host is not None:
                seat.host.kill()
            gone = spec.node not in self._cluster.nodes
            self._left += (*seat.lost, *((f"{spec.label} is lost: its node left the cluster",) if gone else ()))
            self._report()

    def _admit(self, seat: _Seat, host: Host, done: Future[HostFacts]) -> None:
        """Opens a host that has started, unless its node does not fit the search."""
        error = done.exception()
        objection = "" if error is not None else self._objection(done.result())
        if error is not None:
            self._lose(seat, host, _reason(error))
        elif objection:
            self._lose(seat, host, objection, retire=True)
        elif seat.host is host:
            seat.is_admitted = True
            self._open(seat)

    def _open(self, seat: _Seat) -> None:
        if seat.is_admitted and seat.host is not None and self._made is not None:
            seat.host.open(self._made).add_done_callback(self._later(self._opened, seat, seat.host))

    def _opened(self, seat: _Seat, host: Host, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._lose(seat, host, _reason(error))
        elif seat.host is host:
            seat.is_open = True

    def _lose(self, seat: _Seat, host: Host, reason: str, *, retire: bool = False) -> None:
        """Takes a host out of use; another one is started in its place unless it keeps failing."""
        if host is not seat.host:
            return  # it was replaced already
        host.kill()
        seat.host, seat.is_admitted, seat.is_open, seat.running = None, False, False, 0
        seat.failures += 1
        seat.resumes_s = time.monotonic() + TICK_S * 2**seat.failures
        if retire or seat.failures >= _ATTEMPTS:
            seat.retired = True
            seat.lost += (f"{seat.spec.label} is not used any more: {reason}",)
            self._report()

    def _report(self) -> None:
        self.lost = self._left + tuple(line for seat in self._seats.values() for line in seat.lost)

    def _give_up(self) -> None:
        """Fails all jobs when every host was given up, or when none has been ready for :data:`PATIENCE_S`.

        A host that only waits for inputs that are still being prepared counts as ready.
        """
        seats = list(self._seats.values())
        waiting_s = time.monotonic() - self._served_s
        if any(seat.is_open or (seat.is_admitted and self._made is None) for seat in seats):
            self._served_s = time.monotonic()
        elif waiting_s > PATIENCE_S or (seats and all(seat.retired for seat in seats)):
            why = "; ".join(self.lost) or "no node has the free resources, as 'ray status' shows"
            self._fail(WorkersLostError(f"the cluster has no {self._role} workers: {why}"))


def _reason(error: BaseException) -> str:
    """First line of an error of Ray, whose texts are long."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
