"""What a search begins before all else: the imports of its device workers, which take seconds on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from evoengine.cli.gpu import find_gpu
from evoengine.device.worker import HeadStart

EXAMINER_NAME: Final = "device worker"

_EMULATOR_MODULES: Final = ("evoengine.emulator.device",)
_GPU_MODULES: Final = ("evoengine.search.joint", "evoengine.device.cuda", "cupy", "torch")
"""What workers import late; importing starts neither a thread nor CUDA, so their processes can be forked after it."""


def begin_imports(kind: str) -> HeadStart:
    """Begins what the workers of a device import, while it is found out what they shall examine.

    Args:
        kind: cuda or emulator.
    """
    return HeadStart(EXAMINER_NAME, device_modules(kind))


@contextmanager
def gpu_imports(device: str) -> Iterator[HeadStart | None]:
    """The same for a GPU, before anything is known but what the user asked for; None where there is no GPU.

    Args:
        device: as on the command line.
    """
    if device not in ("auto", "cuda") or find_gpu() is None:
        yield None
        return
    with closing(begin_imports("cuda")) as imports:
        yield imports


def device_modules(kind: str) -> tuple[str, ...]:
    """Modules that the workers of a device import late."""
    return _GPU_MODULES if kind == "cuda" else _EMULATOR_MODULES
