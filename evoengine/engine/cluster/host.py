"""Worker services on the nodes of a cluster: what an actor runs, in the same worker processes as on one machine."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from evoengine import __version__
from evoengine.device.tools.sanitizer import find_sanitizer
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.device.workers.worker_main import Failure
from evoengine.engine.devices.gpus import Gpu, find_gpu
from evoengine.engine.workers.job_services import DeferredService
from evoengine.engine.workers.pools import DeviceWorkers, WorkerService, compile_workers
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.search.candidate.build import BuildSetup
from evoengine.search.candidate.jobs import Job
from evoengine.search.candidate.setup import Setup
from evoengine.space.data_dirs import data_dirs
from evoengine.target import Target


@dataclass(frozen=True)
class HostFacts:
    """Facts of a node from which a coordinator decides whether it may be used."""

    node: str
    """Host name."""
    version: str
    """Version of EvoEngine."""
    templates: str
    """Hash of the templates that the node renders."""
    gpu: Gpu | None
    """The GPU of the host; None where it needs none."""
    sanitizer: str
    """Path of compute-sanitizer; empty where there is none."""


@dataclass(frozen=True)
class Answer:
    """Outcome of one job."""

    result: Any
    failure: Failure | None
    lost: tuple[str, ...]
    """One message for each worker of this host that was given up."""


@dataclass(frozen=True)
class MakeDeviceWorkers:
    """Starts the device workers of a host; picklable.

    The setup names the compute-sanitizer of the coordinator; that of the node replaces it.
    """

    setup: Setup
    target: Target

    def __call__(self, size: int, label: str) -> WorkerService:
        sanitizer = str(find_sanitizer() or "") if self.setup.sanitizer else ""
        return DeviceWorkers(replace(self.setup, sanitizer=sanitizer), (GpuBinding(label),) * size, self.target)


@dataclass(frozen=True)
class MakeCompileWorkers:
    """Starts the compile workers of a host; picklable. Templates and cache are those of the node."""

    setup: BuildSetup
    limit_s: float
    gives_way: bool

    def __call__(self, size: int, label: str) -> WorkerService:
        here = replace(self.setup, templates_dirs=data_dirs("templates"), cache_dir=usable_cache_dir())
        return compile_workers(here, size, self.limit_s, gives_way=self.gives_way)


MakeWorkers = Callable[[int, str], WorkerService]
"""Starts the workers of a host, given their number and the name of their device for messages."""


class PoolHost:
    """Runs jobs in worker processes of its node. Lives in an actor; its methods run in several threads.

    Args:
        cores: Numbers of the CPU cores that its processes use, counted among those that the node offers; empty for all.
        on_gpu: Whether it owns a GPU.
        size: Number of workers.
    """

    def __init__(self, cores: Sequence[int], size: int, *, on_gpu: bool) -> None:
        offered = sorted(os.sched_getaffinity(0))
        chosen = {offered[core] for core in cores if core < len(offered)}
        with suppress(OSError):  # a container may forbid it; then the operating system places the processes
            os.sched_setaffinity(0, chosen or offered)
        self._on_gpu = on_gpu
        self._size = size
        self._service: DeferredService | None = None

    def facts(self) -> HostFacts:
        """Returns the facts of the node and of the host's GPU."""
        gpu = find_gpu() if self._on_gpu else None
        return HostFacts(socket.gethostname(), __version__, templates_key(), gpu, str(find_sanitizer() or ""))

    def open(self, make: MakeWorkers) -> None:
        """Starts the workers; jobs wait until they are ready. A GPU first runs its known-good kernel."""
        gpu = find_gpu() if self._on_gpu else None
        label = f"GPU {gpu.pci_bus_id} on {socket.gethostname()}" if gpu is not None else ""
        self.close()  # of an earlier search on the same hosts
        # A thread of the service starts the processes and lives as long as they do, which an actor's threads need not.
        self._service = DeferredService(lambda: make(self._size, label), self._size, ())

    def run(self, kind: type[Job[Any]], *arguments: Any) -> Answer:
        """Runs a job.

        Args:
            kind: Kind of the job.
            arguments: Its fields.
        """
        assert self._service is not None, "opened before"
        try:
            result, failure = self._service.submit(kind(*arguments)).result(), None
        except Exception as error:  # noqa: BLE001 - every error is passed to the coordinator
            result, failure = None, Failure.of(error)
        return Answer(result, failure, self._service.lost)

    def close(self) -> None:
        """Kills the workers."""
        if self._service is not None:
            self._service.close()
            self._service = None


def templates_key() -> str:
    """Returns a hash of all template files of this machine."""
    digest = hashlib.sha256()
    for folder in data_dirs("templates"):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
