"""The CUDA driver through ctypes: loads machine code into torch's context, and launches with little work per call."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

_LIBRARY: Final = "libcuda.so.1"
_MAX_DYNAMIC_SMEM: Final = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of cuda.h."""
_DEFAULT_SMEM_BYTES: Final = 48 * 1024
"""Dynamic shared memory above this must be asked for."""


class CudaDriverError(RuntimeError):
    """The CUDA driver is missing, or refused a call; one line."""


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
    """The driver's functions. :func:`open_driver` makes the one that a process needs.

    A module stays loaded until the process ends; the same code is loaded once per device. Several threads may use it.

    Raises:
        CudaDriverError: there is no driver, or one from before CUDA 11.8.
    """

    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL(_LIBRARY)
            self._launch = self._cuda.cuLaunchKernelEx
        except (OSError, AttributeError) as error:
            raise CudaDriverError(f"no CUDA driver of CUDA 11.8 or newer: {error}") from error
        self.stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_of)  # noqa: SLF001
        """Handle of torch's current stream of a device; the short way where this torch has it."""
        self.current: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)  # noqa: SLF001
        """The current GPU, once torch uses one."""
        self._check(self._cuda.cuInit(0), "cuInit")
        self._lock = threading.Lock()
        self._modules: dict[tuple[int, bytes], ctypes.c_void_p] = {}

    @property
    def devices(self) -> int:
        """GPUs that torch sees."""
        return torch.cuda.device_count()

    def on(self, device: int) -> AbstractContextManager[Any]:
        """Makes a GPU current in a block."""
        return torch.cuda.device(device)

    def capturing(self) -> bool:
        """Whether the current stream is captured into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def enter(self, device: int) -> None:
        """Makes torch's context current in this thread, unless one of the device is.

        Args:
            device: ordinal, as torch counts.
        """
        current, context, handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self._check(self._cuda.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
        self._check(self._cuda.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
        if current.value != context.value:
            self._check(self._cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def function(self, device: int, code: bytes, entry: str, smem_bytes: int) -> int:
        """Address of a kernel that is loaded on a device.

        Args:
            device: ordinal; its context is made current.
            code: a cubin, or PTX with a zero at its end.
            entry: name of the kernel.
            smem_bytes: dynamic shared memory that it will be launched with.

        Raises:
            CudaDriverError: the driver does not take the code.
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
            if hasattr(self._cuda, "cuFuncLoad"):  # CUDA 12.4: loads now what might else be loaded during a capture
                self._check(self._cuda.cuFuncLoad(function), "cuFuncLoad")
            return int(function.value or 0)

    def launch_of(self, config: LaunchConfig, function: int, params: ctypes.Array[Any]) -> Callable[[], int]:
        """What launches a kernel with the contents that its structures then have, and returns a status, 0 for none.

        Args:
            config: grid, threads, shared memory and stream; to be kept by the caller.
            function: address of the kernel.
            params: addresses of its arguments; likewise.
        """
        # Made arguments need no conversion on each call, which would double what ctypes costs.
        kernel = ctypes.c_void_p.from_param(function)
        return functools.partial(self._launch, ctypes.byref(config), kernel, ctypes.byref(params), None)

    def explain(self, status: int) -> str:
        """Name and meaning of a status."""
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
    """The driver of this process.

    Raises:
        CudaDriverError: see :class:`Driver`.
    """
    return Driver()
