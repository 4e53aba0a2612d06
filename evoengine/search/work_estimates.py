"""Early notice of families whose kernels take long on the emulator."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from evoengine.search.candidate.jobs import EstimateWork, JobService
from evoengine.search.candidate.results import Candidate, WorkEstimate
from evoengine.search.events import Observer, SlowFamily

SLOW_S: Final = 5.0
"""Seconds per candidate from which a family is reported; the shipped ones take less than 1 on small problems."""


class WorkEstimates:
    """Estimates the work of each family's first candidate, before it is examined, where the device predicts times.

    Args:
        examiner: Service of the device.
        observer: Receiver of the notices.
    """

    def __init__(self, examiner: JobService, observer: Observer) -> None:
        self._examiner = examiner
        self._observer = observer
        self._begun: set[str] = set()
        self._pending: dict[Future[WorkEstimate | None], str] = {}

    @property
    def futures(self) -> tuple[Future[WorkEstimate | None], ...]:
        """Estimates under way."""
        return tuple(self._pending)

    def begin(self, candidate: Candidate) -> None:
        """Starts the estimate of a candidate that is about to be examined, if its family has none yet."""
        family = candidate.config.family
        if family not in self._begun and self._examiner.supports(EstimateWork):
            self._begun.add(family)
            self._pending[self._examiner.submit(EstimateWork(candidate))] = family

    def step(self) -> None:
        """Reports families whose estimate is long. A failed one is ignored, because the examination will fail too."""
        for future in [future for future in self._pending if future.done()]:
            family = self._pending.pop(future)
            estimate = None if future.cancelled() or future.exception() is not None else future.result()
            if estimate is not None and estimate.seconds >= SLOW_S:
                self._observer.notify(SlowFamily(family, estimate))
