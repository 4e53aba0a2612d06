"""Reports of workers that do not come back, while the search goes on with the others."""

from __future__ import annotations

from evoengine.search.candidate.jobs import JobService
from evoengine.search.events import Observer, WorkerLost


class WorkerLossReporter:
    """Reports each lost worker of some services once.

    Args:
        services: Services to watch.
        observer: Receiver of the events.
    """

    def __init__(self, services: tuple[JobService, ...], observer: Observer) -> None:
        self._services = services
        self._observer = observer
        self._reported: set[str] = set()

    def report(self) -> None:
        """Reports the workers lost since the previous call."""
        for service in self._services:
            for reason in service.lost:
                if reason not in self._reported:
                    self._reported.add(reason)
                    self._observer.notify(WorkerLost(reason))
