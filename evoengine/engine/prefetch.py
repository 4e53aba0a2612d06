"""Prefetch of the workers' imports, which take seconds on a GPU: a search starts them before anything else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evoengine.device.workers.pool import HeadStart
from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.gpus import find_gpu
from evoengine.engine.worker_modules import COMPILER_MODULES, COMPILER_NAME, EXAMINER_NAME, device_modules
from evoengine.system.temporary import sweep_temporary_folders

if TYPE_CHECKING:
    from evoengine.engine.cluster import Cluster

_GPU_FILES: Final = ("/dev/nvidiactl", "/dev/dxg")
"""NVIDIA's driver for Linux, and WSL's."""
_PREPARER_MODULES: Final = ("evoengine.search.candidate.setup", "torch")
"""Modules that compute inputs and their truths."""


@dataclass(frozen=True)
class EarlyImports:
    """Imports of workers under way. Each is closed by the pool that takes it over, or with all at the end."""

    compilers: HeadStart | None = None
    """None where nothing is compiled."""
    devices: HeadStart | None = None
    """None where there is no GPU."""
    preparer: SidecarProcess | None = None
    """Process that prepares the inputs; None where there is no GPU that would wait for them."""
    cluster: Cluster | None = None
    """Cluster that the search runs on; None for this machine alone."""


def begin_imports(kind: str) -> HeadStart:
    """Starts the imports of a device's workers, before it is known what they examine.

    Args:
        kind: ``cuda`` or ``emulator``.
    """
    return HeadStart(EXAMINER_NAME, device_modules(kind))


@contextmanager
def early_imports(device: str, cluster: str = "") -> Iterator[EarlyImports]:
    """Starts all imports that can be derived from the requested device alone, or connects to a cluster.

    Args:
        device: Value of ``--device``.
        cluster: Value of ``--cluster``, whose hosts import for themselves.
    """
    sweep_temporary_folders()
    if cluster:
        with cluster_alone(cluster) as imports:
            yield imports or EarlyImports()
        return
    kind = device.partition(":")[0]
    with ExitStack() as stack:
        devices = compilers = preparer = None
        if kind in ("auto", "cuda") and _may_have_gpu():
            devices = stack.enter_context(closing(begin_imports("cuda")))
            preparer = stack.enter_context(closing(SidecarProcess("preparer", _PREPARER_MODULES)))
        if kind != "replay":
            compilers = stack.enter_context(closing(HeadStart(COMPILER_NAME, COMPILER_MODULES)))
        yield EarlyImports(compilers, devices, preparer)


@contextmanager
def cluster_alone(address: str) -> Iterator[EarlyImports | None]:
    """Connects to a cluster without any imports, for one search or several in turn.

    Args:
        address: Value of ``--cluster``; None is yielded where it is empty.
    """
    if not address:
        yield None
        return
    from evoengine.engine.cluster import open_cluster

    with open_cluster(address) as cluster:
        yield EarlyImports(cluster=cluster)


def _may_have_gpu() -> bool:
    """Whether there may be a GPU. The driver's slow initialisation runs in a thread, while this process imports."""
    if not any(Path(place).exists() for place in _GPU_FILES):
        return find_gpu() is not None
    threading.Thread(target=find_gpu, daemon=True).start()
    return True
