"""Worker processes as the services that the search loop knows."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final

from evoengine.device.worker import WorkerPool
from evoengine.kernel.artifact import Kernel
from evoengine.kernel.nvrtc import nvrtc_version
from evoengine.model import Config, DeviceInfo, Duel
from evoengine.search.evaluate import (
    Builder,
    BuildSetup,
    Compilation,
    DeviceSpec,
    Examination,
    Examiner,
    Setup,
    open_device,
)
from evoengine.target import Target

COMPILE_TIMEOUT_S: Final = 120.0
"""Above the slowest honest compile on a busy machine."""
MEASURE_TIMEOUT_S: Final = 60.0
"""For one candidate on a GPU: parity cases, samples and recheck."""
EMULATE_TIMEOUT_S: Final = 180.0
"""For one candidate on the emulator."""
DUEL_TIMEOUT_S: Final = 60.0


class CompilePool:
    """A :class:`~evoengine.search.services.CompileService` of worker processes."""

    def __init__(self, setup: BuildSetup, workers: int) -> None:
        self._pool = WorkerPool(partial(Builder, setup), workers, COMPILE_TIMEOUT_S, name="compile worker")

    @property
    def workers(self) -> int:
        """Configs that it works on at the same time."""
        return self._pool.size

    def submit(self, config: Config) -> Future[Compilation]:
        """Starts on a config."""
        return self._pool.submit("build", config)

    def close(self) -> None:
        """Kills the workers."""
        self._pool.close()


class ExaminePool:
    """An :class:`~evoengine.search.services.ExamineService` of worker processes, each with a device of its own."""

    def __init__(self, setup: Setup, workers: int) -> None:
        timeout_s = MEASURE_TIMEOUT_S if setup.device.kind == "cuda" else EMULATE_TIMEOUT_S
        self._pool = WorkerPool(partial(Examiner, setup), workers, timeout_s, name="device worker")

    @property
    def workers(self) -> int:
        """Kernels that it works on at the same time."""
        return self._pool.size

    def submit(self, kernel: Kernel, champion_us: float | None) -> Future[Examination]:
        """Starts on a kernel."""
        return self._pool.submit("examine", kernel, champion_us)

    def challenge(self, challenger: Kernel, champion: Kernel) -> Future[Duel]:
        """Starts a duel."""
        return self._pool.submit("challenge", challenger, champion, timeout_s=DUEL_TIMEOUT_S)

    def close(self) -> None:
        """Kills the workers."""
        self._pool.close()


class NoWorkers:
    """Both services for a study that is complete: there is nothing to do, so no process is started."""

    @property
    def workers(self) -> int:
        """None."""
        return 0

    def submit(self, *_work: object) -> Future[Any]:
        """Refuses.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a complete study needs no workers")

    challenge = submit


class DeviceDescriber:
    """Opens a device only to say what it is."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._device = open_device(spec)

    def describe(self) -> tuple[DeviceInfo, Target]:
        """Facts about the device."""
        return self._device.info, self._device.target


def describe_device(spec: DeviceSpec) -> tuple[DeviceInfo, Target]:
    """Facts about a device. A GPU is asked from a process of its own: this one must never hold a CUDA context.

    Raises:
        EvoEngineError: the device cannot be opened.
    """
    if spec.kind == "emulator":
        info, target = DeviceDescriber(spec).describe()
    else:
        with WorkerPool(partial(DeviceDescriber, spec), 1, MEASURE_TIMEOUT_S, name="device probe") as pool:
            info, target = pool.submit("describe").result()
    return replace(info, nvrtc=nvrtc_version()), target
