"""CUDA driver API through ctypes: loads machine code into torch's context and launches with little overhead."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from evoengine.runtime.map_encoding import MapGeometry, map_encoder

_LIBRARY: Final = "libcuda.so.1"
_MAX_DYNAMIC_SMEM: Final = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of cuda.h."""
_DEFAULT_SMEM_BYTES: Final = 48 * 1024
"""Dynamic shared memory above this size must be requested for a function."""


class CudaDriverError(RuntimeError):
    """The CUDA driver is missing, or a driver call failed; the message is one line."""


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig`` of cuda.h."""

    _fields_ = [
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """Functions of the CUDA driver; :func:`open_driver` returns the instance of the process.

    A module stays loaded until the process ends; equal code is loaded once per device. The class is thread-safe.

    Raises:
        CudaDriverError: There is no driver, or it is older than CUDA 11.8.
    """

    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL(_LIBRARY)
            self._launch = self._cuda.cuLaunchKernelEx
        except (OSError, AttributeError) as error:
            raise CudaDriverError(f"no CUDA driver of CUDA 11.8 or newer: {error}") from error
        internals = torch._C  # noqa: SLF001
        self.stream_of: Callable[[int], int] = getattr(internals, "_cuda_getCurrentRawStream", _stream_of)
        """Returns the handle of torch's current stream of a device; uses torch's internal function if available."""
        self.current: Callable[[], int] = getattr(internals, "_cuda_getDevice", torch.cuda.current_device)
        """Returns the ordinal of the current GPU."""
        self._check(self._cuda.cuInit(0), "cuInit")
        self._lock = threading.Lock()
        self._modules: dict[tuple[int, bytes], ctypes.c_void_p] = {}

    @property
    def devices(self) -> int:
        """Number of GPUs visible to torch."""
        return torch.cuda.device_count()

    def on(self, device: int) -> AbstractContextManager[Any]:
        """Returns a context manager that makes a GPU current."""
        return torch.cuda.device(device)

    def capturing(self) -> bool:
        """Returns whether the current stream is being captured into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def enter(self, device: int) -> None:
        """Makes the device's primary context, which torch uses, current in this thread.

        Args:
            device: Ordinal of the GPU in torch.
        """
        current, context, handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self._check(self._cuda.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
        self._check(self._cuda.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
        if current.value != context.value:
            self._check(self._cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def function(self, device: int, code: bytes, entry: str, smem_bytes: int) -> int:
        """Loads a kernel on a device and returns its handle.

        Args:
            device: Ordinal of the GPU; its context is made current.
            code: Cubin, or zero-terminated PTX.
            entry: Name of the kernel.
            smem_bytes: Dynamic shared memory of its launches.

        Raises:
            CudaDriverError: The driver rejects the code.
        """
        with self._lock:
            self.enter(device)
            module = self._modules.get((device, code))
            if module is None:
                module = ctypes.c_void_p()
                self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
                self._modules[device, code] = module
            function = ctypes.c_void_p()
            status = self._cuda.cuModuleGetFunction(ctypes.byref(function), module, entry.encode())
            self._check(status, f"cuModuleGetFunction({entry})")
            if smem_bytes > _DEFAULT_SMEM_BYTES:
                status = self._cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SMEM, smem_bytes)
                self._check(status, "cuFuncSetAttribute")
            if hasattr(self._cuda, "cuFuncLoad"):  # CUDA 12.4: avoids lazy loading during a graph capture
                self._check(self._cuda.cuFuncLoad(function), "cuFuncLoad")
            return int(function.value or 0)

    def launch_of(self, config: LaunchConfig, function: int, params: ctypes.Array[Any]) -> Callable[[], int]:
        """Returns a function that launches a kernel and returns a status, 0 for success.

        The function reads ``config`` and ``params`` at each call; the caller must keep them alive.

        Args:
            config: Grid, threads, shared memory and stream.
            function: Handle of the kernel.
            params: Addresses of the kernel's arguments, which may change between calls.
        """
        # Prepared arguments need no conversion at each call, which would double the overhead of ctypes.
        kernel = ctypes.c_void_p.from_param(function)
        return functools.partial(self._launch, ctypes.byref(config), kernel, ctypes.byref(params), None)

    def map_encoder(self, geometry: MapGeometry) -> Callable[[int, int], int]:
        """Returns a function that encodes tensor maps; see :func:`~evoengine.runtime.map_encoding.map_encoder`.

        Raises:
            CudaDriverError: The driver is older than CUDA 12.0.
        """
        if not hasattr(self._cuda, "cuTensorMapEncodeTiled"):
            raise CudaDriverError("tensor maps need a driver of CUDA 12.0 or newer")
        return map_encoder(self._cuda, geometry)

    def explain(self, status: int) -> str:
        """Returns name and description of a status."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._cuda.cuGetErrorName(status, ctypes.byref(name))
        self._cuda.cuGetErrorString(status, ctypes.byref(text))
        return f"{(name.value or b'unknown').decode()} ({(text.value or b'').decode()})"

    def _check(self, status: int, doing: str) -> None:
        if status != 0:
            raise CudaDriverError(f"{doing}: {self.explain(status)}")


def _stream_of(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


@functools.cache
def open_driver() -> Driver:
    """Returns the driver of this process.

    Raises:
        CudaDriverError: There is no driver, or it is older than CUDA 11.8.
    """
    return Driver()
