"""The two things that the loop hands work to; what processes stand behind them is not its business."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from evoengine.kernel.records import Kernel
from evoengine.model import Config, Duel
from evoengine.search.candidate.evaluate import Compilation, Examination
from evoengine.search.candidate.inspection import Inspection


class CompileService(Protocol):
    """Renders and compiles configs."""

    @property
    def workers(self) -> int:
        """Configs that it works on at the same time."""

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each worker that does not come back, oldest first."""

    def submit(self, config: Config) -> Future[Compilation]:
        """Starts on a config. A candidate's fault is a status of the compilation; an exception means a lost worker."""


class ExamineService(Protocol):
    """Judges and times kernels on the device."""

    @property
    def workers(self) -> int:
        """Kernels that it works on at the same time."""

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each device that does not come back, oldest first."""

    def submit(self, kernel: Kernel, champion_us: float | None) -> Future[Examination]:
        """Starts on a kernel. A candidate's fault is a status of the examination; an exception means a dead worker.

        Args:
            kernel: the candidate.
            champion_us: best accepted time so far; what cannot beat it may be examined with less care.
        """

    def challenge(self, challenger: Kernel, champion: Kernel) -> Future[Duel]:
        """Starts a duel of two kernels that were examined before; an exception means that there is no evidence."""

    def inspect(self, kernel: Kernel) -> Future[Inspection]:
        """Starts to look at a kernel that was examined before and is to be champion.

        An exception means that it was not looked at; a :class:`~evoengine.errors.DefectError`, that no verdict can be
        believed.
        """

    @property
    def sanitizes(self) -> bool:
        """Whether the inspection has a second part, which stops a device."""

    def stand_by(self) -> Future[None]:
        """Starts what the second part needs, for seconds in which a device goes on; nothing depends on it."""

    def sanitize(self, kernel: Kernel) -> Future[Inspection]:
        """Starts on the second part; an exception means that it was not done."""
