"""Workers that do not come back: each is told once, while the search goes on with the others."""

from __future__ import annotations

from evoengine.search.candidate.services import CompileService, ExamineService
from evoengine.search.events import Observer, WorkerLost


class WorkerLossReporter:
    """What two services have lost so far.

    Args:
        compiler: one of them.
        examiner: the other; each of its workers has a device of its own.
        observer: hears of each loss.
    """

    def __init__(self, compiler: CompileService, examiner: ExamineService, observer: Observer) -> None:
        self._compiler = compiler
        self._examiner = examiner
        self._observer = observer
        self._told: set[str] = set()

    def tell(self) -> None:
        """Tells what is new."""
        for reason in (*self._compiler.lost, *self._examiner.lost):
            if reason not in self._told:
                self._told.add(reason)
                self._observer.notify(WorkerLost(reason))
