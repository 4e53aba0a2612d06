"""Worker processes as the services that the search loop knows."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final

from evoengine.device.worker import Care, WorkerPool
from evoengine.kernel.artifact import Kernel
from evoengine.kernel.nvrtc import nvrtc_version
from evoengine.model import Config, DeviceInfo, Duel
from evoengine.search.arrival import compilation_objection, duel_objection, examination_objection
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
from evoengine.search.limits import COMPILE_LIMIT_S, duel_limit_s, examination_limit_s
from evoengine.target import Target

_DESCRIBE_LIMIT_S: Final = 60.0
_COMPILER_MODULES: Final = ("cuda.bindings.nvrtc",)
_EMULATOR_MODULES: Final = ("evoengine.emulator.device",)
_GPU_MODULES: Final = ("evoengine.device.cuda", "cupy", "torch")
"""What workers import late; importing starts neither a thread nor CUDA, so their processes can be forked after it."""

_SPARE_BYTES: Final = 2**28
"""A spare holds the baseline's tensors: beside larger ones, a candidate might not find the memory that it needs."""


class CompilePool:
    """A :class:`~evoengine.search.services.CompileService` of worker processes.

    Args:
        setup: what is built.
        workers: their number.
        limit_s: seconds that one compilation may take.
    """

    def __init__(self, setup: BuildSetup, workers: int, limit_s: float = COMPILE_LIMIT_S) -> None:
        self._arch = setup.arch
        self._pool = WorkerPool(
            partial(Builder, setup), workers, limit_s, name="compile worker", preload=_COMPILER_MODULES
        )

    @property
    def workers(self) -> int:
        """Configs that it works on at the same time."""
        return self._pool.size

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each worker that does not come back."""
        return self._pool.lost

    def submit(self, config: Config) -> Future[Compilation]:
        """Starts on a config."""
        judge = partial(compilation_objection, config, self._arch)
        return self._pool.submit("build", config, tag=config.key, judge=judge)

    def close(self) -> None:
        """Kills the workers."""
        self._pool.close()


class ExaminePool:
    """An :class:`~evoengine.search.services.ExamineService` of worker processes, each with a device of its own.

    Args:
        setup: what an examination consists of.
        workers: their number; on a GPU another one stands ready beside each, unless memory could get short.
        target: the GPU.
    """

    def __init__(self, setup: Setup, workers: int, target: Target) -> None:
        on_gpu = setup.device.kind == "cuda"
        self._setup = setup
        self._duel_limit_s = duel_limit_s(setup, target)
        self._pool = WorkerPool(
            partial(Examiner, setup),
            workers,
            examination_limit_s(setup, target),
            name="device worker",
            preload=_GPU_MODULES if on_gpu else _EMULATOR_MODULES,
            care=Care(spares=1 if on_gpu and setup.problem.min_bytes <= _SPARE_BYTES else 0),
        )

    @property
    def workers(self) -> int:
        """Kernels that it works on at the same time."""
        return self._pool.size

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each device that does not come back."""
        return self._pool.lost

    def submit(self, kernel: Kernel, champion_us: float | None) -> Future[Examination]:
        """Starts on a kernel."""
        judge = partial(examination_objection, self._setup)
        return self._pool.submit("examine", kernel, champion_us, tag=kernel.config.key, judge=judge)

    def challenge(self, challenger: Kernel, champion: Kernel) -> Future[Duel]:
        """Starts a duel."""
        judge = partial(duel_objection, self._setup)
        return self._pool.submit("challenge", challenger, champion, timeout_s=self._duel_limit_s, judge=judge)

    def close(self) -> None:
        """Kills the workers."""
        self._pool.close()


class NoWorkers:
    """Both services for a study that is complete: there is nothing to do, so no process is started."""

    @property
    def workers(self) -> int:
        """None."""
        return 0

    @property
    def lost(self) -> tuple[str, ...]:
        """None either."""
        return ()

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
        with WorkerPool(partial(DeviceDescriber, spec), 1, _DESCRIBE_LIMIT_S, name="device probe") as pool:
            info, target = pool.submit("describe").result()
    return replace(info, nvrtc=nvrtc_version()), target
