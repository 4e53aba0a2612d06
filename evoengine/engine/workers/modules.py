"""Names of the worker processes, and the modules that they import."""

from __future__ import annotations

from typing import Final

DEVICE_WORKER_NAME: Final = "device worker"
COMPILE_WORKER_NAME: Final = "compile worker"
COMPILER_MODULES: Final = ("cuda.bindings.nvrtc", "evoengine.search.candidate.build")
"""Modules that compile workers import."""

_EMULATOR_MODULES: Final = ("evoengine.costmodel.device",)
_GPU_MODULES: Final = ("evoengine.search.candidate.examiner", "evoengine.device.cuda.device", "cupy", "torch")
"""Late imports of device workers. They start neither a thread nor CUDA, so that processes can be forked after them."""


def device_modules(kind: str) -> tuple[str, ...]:
    """Returns the late imports of a device's workers."""
    return _GPU_MODULES if kind == "cuda" else _EMULATOR_MODULES
