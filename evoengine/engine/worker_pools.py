"""Worker processes as the services that the search loop knows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final

from evoengine.device.architecture import compute_capability
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.device.workers.pool import Care, HeadStart, WorkerPool
from evoengine.engine.devices import DeviceChoice
from evoengine.engine.environment_check import cupy_version
from evoengine.engine.gpus import Gpu, find_gpu
from evoengine.engine.prefetch import COMPILER_MODULES, COMPILER_NAME, EXAMINER_NAME, device_modules
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.kernel.records import Kernel
from evoengine.model import Config, DeviceInfo, Duel
from evoengine.search.candidate.build import build_service
from evoengine.search.candidate.deadlines import (
    COMPILE_LIMIT_S,
    DEVICE_CHECK_LIMIT_S,
    EMULATOR_CHECK_LIMIT_S,
    duel_limit_s,
    emulated_inspection_limit_s,
    examination_limit_s,
    sanitizing_limit_s,
)
from evoengine.search.candidate.evaluate import (
    BuildSetup,
    Compilation,
    DeviceSpec,
    Examination,
    Setup,
    open_device,
)
from evoengine.search.candidate.inspection import EmulatedInspector, Inspection, joined
from evoengine.search.candidate.result_validation import (
    compilation_objection,
    duel_objection,
    energy_objection,
    examination_objection,
)
from evoengine.search.candidate.workload_examiner import examine_service
from evoengine.target import Target, native_arch, target_for_gpu

_DESCRIBE_LIMIT_S: Final = 60.0

_SPARE_BYTES: Final = 2**28
"""A spare holds the baseline's tensors: beside larger ones, a candidate might not find the memory that it needs."""


class CompilePool:
    """A :class:`~evoengine.search.candidate.services.CompileService` of worker processes.

    Args:
        setup: what is built.
        workers: their number.
        limit_s: seconds that one compilation may take.
        gives_way: whether whoever else needs a core gets it first.
        imports: of the workers, where they were begun before (see :mod:`evoengine.engine.prefetch`).
    """

    def __init__(
        self,
        setup: BuildSetup,
        workers: int,
        limit_s: float = COMPILE_LIMIT_S,
        *,
        gives_way: bool = False,
        imports: HeadStart | None = None,
    ) -> None:
        self._arch = setup.arch
        self._pool = WorkerPool(
            partial(build_service, setup, gives_way=gives_way),
            workers,
            limit_s,
            name=COMPILER_NAME,
            preload=COMPILER_MODULES,
            head_start=imports,
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
    """An :class:`~evoengine.search.candidate.services.ExamineService` of worker processes, each with a device of its own.

    Args:
        setup: what an examination consists of.
        places: where each worker runs; on a GPU another one stands ready beside it, unless memory could get short.
        target: the GPU.
        imports: of the workers, where they were begun before (see :mod:`evoengine.engine.prefetch`).
    """

    def __init__(
        self, setup: Setup, places: Sequence[GpuBinding], target: Target, imports: HeadStart | None = None
    ) -> None:
        on_gpu = setup.device.kind == "cuda"
        self._setup = setup
        self._target = target
        self._beside: WorkerPool | None = None
        self._duel_limit_s = duel_limit_s(setup, target)
        self._examination_limit_s = examination_limit_s(setup, target)
        self._pool = WorkerPool(
            partial(examine_service, setup),
            len(places),
            self._examination_limit_s,
            name=EXAMINER_NAME,
            preload=device_modules(setup.device.kind),
            care=Care(
                spares=1 if on_gpu and _held_bytes(setup) <= _SPARE_BYTES else 0,
                check_timeout_s=DEVICE_CHECK_LIMIT_S if on_gpu else EMULATOR_CHECK_LIMIT_S,
            ),
            places=places,
            head_start=imports,
        )

    @property
    def workers(self) -> int:
        """Kernels that it works on at the same time."""
        return self._pool.size

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each device that does not come back."""
        return self._pool.lost + (self._beside.lost if self._beside is not None else ())

    def submit(self, kernel: Kernel, champion_us: float | None) -> Future[Examination]:
        """Starts on a kernel."""
        judge = partial(examination_objection, self._setup)
        limit_s, tag = self._examination_limit_s, kernel.config.key
        future = self._pool.submit("examine", kernel, champion_us, timeout_s=limit_s, tag=tag, judge=judge)
        future.add_done_callback(self._learn_pace)
        return future

    def _learn_pace(self, done: Future[Examination]) -> None:
        """What the baseline takes on the one problem, from the first examination that says it, bounds later ones."""
        if done.cancelled() or done.exception() is not None or self._setup.others:
            return
        timing = done.result().timing
        if timing is not None and timing.baseline_us is not None:
            self._examination_limit_s = examination_limit_s(self._setup, self._target, timing.baseline_us)

    def challenge(self, challenger: Kernel, champion: Kernel) -> Future[Duel]:
        """Starts a duel."""
        judge = partial(duel_objection, self._setup)
        return self._pool.submit("challenge", challenger, champion, timeout_s=self._duel_limit_s, judge=judge)

    def inspect(self, kernel: Kernel) -> Future[Inspection]:
        """Starts to look at a finalist: on its device, and if that is a GPU on the emulator beside it too."""
        own: Future[Inspection] = self._pool.submit("inspect", kernel, tag=kernel.config.key)
        if self._setup.device.kind == "emulator":
            return own
        if self._beside is None:  # only now: a search may never have a new champion
            pools = tuple(setup.pool for setup in (self._setup, *self._setup.others))
            make = partial(EmulatedInspector, pools, self._target)
            limit_s = emulated_inspection_limit_s(self._setup)
            self._beside = WorkerPool(make, 1, limit_s, name="inspector", preload=device_modules("emulator"))
        return joined([own, self._beside.submit("inspect", kernel)])

    @property
    def sanitizes(self) -> bool:
        """Whether compute-sanitizer looks at new champions."""
        return bool(self._setup.sanitizer)

    def stand_by(self) -> Future[None]:
        """Starts compute-sanitizer for whoever is looked at next."""
        return self._pool.submit("stand_by", tag="compute-sanitizer")

    def sanitize(self, kernel: Kernel) -> Future[Inspection]:
        """Runs compute-sanitizer over a new champion."""
        limit_s = sanitizing_limit_s(self._setup, self._target)
        return self._pool.submit("sanitize", kernel, timeout_s=limit_s, tag=kernel.config.key)

    def energy(self, kernel: Kernel) -> Future[float | None]:
        """Starts to measure the energy per call."""
        return self._pool.submit("energy", kernel, timeout_s=self._duel_limit_s, judge=energy_objection)

    def close(self) -> None:
        """Kills the workers."""
        self._pool.close()
        if self._beside is not None:
            self._beside.close()


def _held_bytes(setup: Setup) -> int:
    """What the tensors of all problems take."""
    return sum(one.problem.min_bytes for one in (setup, *setup.others))


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

    sanitizes = False
    challenge = inspect = stand_by = sanitize = submit


class DeviceDescriber:
    """Opens a device only to say what it is."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._device = open_device(spec)

    def describe(self) -> tuple[DeviceInfo, Target]:
        """Facts about the device."""
        return self._device.info, self._device.target


def describe_device(choice: DeviceChoice) -> tuple[DeviceInfo, Target]:
    """Facts about a device, the first of several.

    A known GPU is described by its driver, which takes no time. Another is opened, in a process of its own: this one
    must never hold a CUDA context. So is one that cannot be used, so that it says why.

    Raises:
        EvoEngineError: the device cannot be opened.
    """
    spec = choice.spec
    known = known_gpu(spec, choice.gpu) if spec.kind == "cuda" else None
    if known is not None:
        info, target = known
    elif spec.kind == "emulator":
        info, target = DeviceDescriber(spec).describe()
    else:
        probe, places = partial(DeviceDescriber, spec), choice.places[:1]
        with WorkerPool(probe, 1, _DESCRIBE_LIMIT_S, name="device probe", places=places) as pool:
            info, target = pool.submit("describe").result()
    return replace(info, nvrtc=nvrtc_version()), target


def known_gpu(spec: DeviceSpec, gpu: Gpu | None = None) -> tuple[DeviceInfo, Target] | None:
    """What a :class:`~evoengine.device.cuda.device.CudaDevice` says of a GPU, without opening it.

    Args:
        spec: the device.
        gpu: which one; None for the first.

    Returns:
        None where there is none, where CuPy is missing, where the GPU is in no data sheet, or is older than the
        architecture that is asked for.
    """
    gpu = gpu or find_gpu()
    if gpu is None or cupy_version() is None:
        return None
    target = target_for_gpu(gpu.name, gpu.memory_bytes)
    own_arch = native_arch(*divmod(gpu.arch, 10))
    if target is None or (spec.arch and compute_capability(spec.arch) > compute_capability(own_arch)):
        return None
    arch = spec.arch or own_arch
    info = DeviceInfo("cuda", gpu.name, arch, predicted=False, driver=gpu.driver)
    return replace(info, pci_bus_id=gpu.pci_bus_id, uuid=gpu.uuid), target
