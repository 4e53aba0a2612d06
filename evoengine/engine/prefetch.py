"""What a search begins before all else: the imports of its workers, which take seconds on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.device.workers.pool import HeadStart
from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.gpus import find_gpu

EXAMINER_NAME: Final = "device worker"
COMPILER_NAME: Final = "compile worker"
COMPILER_MODULES: Final = ("cuda.bindings.nvrtc", "evoengine.search.candidate.build")
"""What compile workers import."""

_EMULATOR_MODULES: Final = ("evoengine.costmodel.device",)
_GPU_FILES: Final = ("/dev/nvidiactl", "/dev/dxg")
"""NVIDIA's driver for Linux, and WSL's."""
_PREPARER_MODULES: Final = ("evoengine.search.candidate.workload_examiner", "torch")
"""What inputs and their truths are computed with."""
_GPU_MODULES: Final = ("evoengine.search.candidate.workload_examiner", "evoengine.device.cuda.device", "cupy", "torch")
"""What workers import late; importing starts neither a thread nor CUDA, so their processes can be forked after it."""


@dataclass(frozen=True)
class EarlyImports:
    """Imports of workers that are under way; each is closed by the pool that takes it over, or with all at the end."""

    compilers: HeadStart | None = None
    """None where nothing is compiled."""
    devices: HeadStart | None = None
    """None where there is no GPU."""
    preparer: SidecarProcess | None = None
    """Prepares what is to be examined; None where there is no GPU, which would wait for it."""


def begin_imports(kind: str) -> HeadStart:
    """Begins what the workers of a device import, while it is found out what they shall examine.

    Args:
        kind: cuda or emulator.
    """
    return HeadStart(EXAMINER_NAME, device_modules(kind))


@contextmanager
def early_imports(device: str) -> Iterator[EarlyImports]:
    """Begins before anything is known but what the user asked for.

    Args:
        device: as on the command line.
    """
    kind = device.partition(":")[0]
    with ExitStack() as stack:
        devices = compilers = preparer = None
        if kind in ("auto", "cuda") and _may_have_gpu():
            devices = stack.enter_context(closing(begin_imports("cuda")))
            preparer = stack.enter_context(closing(SidecarProcess("preparer", _PREPARER_MODULES)))
        if kind != "replay":
            compilers = stack.enter_context(closing(HeadStart(COMPILER_NAME, COMPILER_MODULES)))
        yield EarlyImports(compilers, devices, preparer)


def _may_have_gpu() -> bool:
    """Whether it is worth to begin. Initialising the driver takes a while: meanwhile this process imports, too."""
    if not any(Path(place).exists() for place in _GPU_FILES):
        return find_gpu() is not None
    threading.Thread(target=find_gpu, daemon=True).start()
    return True


def device_modules(kind: str) -> tuple[str, ...]:
    """Modules that the workers of a device import late."""
    return _GPU_MODULES if kind == "cuda" else _EMULATOR_MODULES
