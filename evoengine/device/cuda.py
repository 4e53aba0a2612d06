"""The CUDA device: binaries run through ``cupy.RawModule`` and are timed by CUDA-graph replay.

The only importer of CuPy, which is loaded when a device is opened.
"""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.device.base import GUARD_BYTES, StopwatchOptions
from evoengine.device.guard import TENSORS, check_images, input_images, output_bits
from evoengine.errors import LaunchError, MissingDependencyError, UsageError
from evoengine.kernel.abi import ENTRY, Placement, pack_params
from evoengine.kernel.artifact import Binary, Kernel
from evoengine.kernel.call import AttentionInputs, Bits
from evoengine.model import DeviceInfo
from evoengine.target import Target, target_for_gpu

_DEFAULT_SMEM_BYTES: Final = 48 * 1024
"""Dynamic shared memory above this must be opted in to."""

# cudaDeviceAttr numbers: stable ABI, and the clock rates are gone from cudaDeviceProp since CUDA 13.
_MAX_THREADS_PER_BLOCK: Final = 1
_CLOCK_RATE_KHZ: Final = 13
_SM_COUNT: Final = 16
_MEMORY_CLOCK_RATE_KHZ: Final = 36
_MEMORY_BUS_BITS: Final = 37
_L2_BYTES: Final = 38
_MAX_THREADS_PER_SM: Final = 39
_CC_MAJOR: Final = 75
_CC_MINOR: Final = 76
_SMEM_PER_SM: Final = 81
_REGS_PER_SM: Final = 82
_SMEM_PER_BLOCK_OPTIN: Final = 97
_MAX_BLOCKS_PER_SM: Final = 106


class CudaDevice:
    """The first visible GPU.

    Args:
        arch: architecture to compile for; None for the GPU's own. An older one is loaded as PTX where its machine code
            does not run.

    Raises:
        MissingDependencyError: no CuPy, no driver, or no GPU.
        UsageError: the GPU is older than ``arch``.
    """

    def __init__(self, arch: str | None = None) -> None:
        self._cp: Any = _import_cupy()
        runtime = self._cp.cuda.runtime
        try:
            self._id = int(runtime.getDevice())
            properties = runtime.getDeviceProperties(self._id)
            driver = _version(int(runtime.driverGetVersion()))
        except self._cuda_errors() as error:
            raise MissingDependencyError(
                f"no usable NVIDIA GPU ({_one_line(error)}): check 'nvidia-smi', or use --device emulator"
            ) from error
        name = properties["name"]
        gpu_name = name.decode() if isinstance(name, bytes) else str(name)
        self._cc = (self._attribute(_CC_MAJOR), self._attribute(_CC_MINOR))
        own_arch = f"sm_{self._cc[0]}{self._cc[1]}"
        if arch is not None and _compute_capability(arch) > self._cc:
            raise UsageError(f"{gpu_name} is {own_arch} and cannot run {arch}: leave --arch out or give an older one")
        self._info = DeviceInfo("cuda", gpu_name, arch or own_arch, predicted=False, driver=driver)
        self._target = target_for_gpu(gpu_name, int(properties["totalGlobalMem"])) or self._described(gpu_name)
        self._stream = self._cp.cuda.Stream(non_blocking=True)
        self._folder = Path(tempfile.mkdtemp(prefix="evoengine-"))
        self._serial = itertools.count()
        self._healthy = True
        self._wreck: list[object] = []

    @property
    def info(self) -> DeviceInfo:
        """GPU name, driver and the architecture that candidates are compiled for."""
        return self._info

    @property
    def target(self) -> Target:
        """The data sheet of this GPU, or what its driver says."""
        return self._target

    @property
    def healthy(self) -> bool:
        """False after a fault that only a new process gets rid of."""
        return self._healthy

    @property
    def cupy(self) -> Any:
        """The CuPy module."""
        return self._cp

    @property
    def stream(self) -> Any:
        """The non-blocking stream on which everything runs."""
        return self._stream

    def load(self, kernel: Kernel) -> CudaKernel:
        """Loads the machine code, or the PTX where the machine code is for another architecture.

        Raises:
            LaunchError: the driver does not take it.
        """
        with self.faults("cannot load the kernel"):
            # RawModule is memoised by path: every binary gets a path of its own, used once.
            path = self._folder / f"{kernel.binary.code_hash}-{next(self._serial)}{self._suffix(kernel.binary)}"
            if path.suffix == ".cubin":
                path.write_bytes(kernel.binary.cubin)
            else:
                path.write_text(kernel.binary.ptx)
            function = self._cp.RawModule(path=str(path)).get_function(ENTRY)
            path.unlink()
            smem_bytes = kernel.source.launch.smem_bytes
            if smem_bytes > _DEFAULT_SMEM_BYTES:
                function.max_dynamic_shared_size_bytes = smem_bytes
        return CudaKernel(self, kernel, function)

    def close(self) -> None:
        """Removes the temporary files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        """Turns CUDA's errors into LaunchError, and notes when the device is lost."""
        try:
            yield
        except self._cuda_errors() as error:
            self._note_health()
            raise LaunchError(f"{doing}: {_one_line(error)}") from error

    def retire(self, *objects: object) -> None:
        """Keeps objects of a lost context: freeing them would only fail again, noisily."""
        if not self._healthy:
            self._wreck.extend(objects)

    def _note_health(self) -> None:
        try:
            self._cp.cuda.runtime.deviceSynchronize()
        except self._cuda_errors():
            self._healthy = False

    def _cuda_errors(self) -> tuple[type[Exception], ...]:
        cuda = self._cp.cuda
        return (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError)

    def _suffix(self, binary: Binary) -> str:
        """Machine code runs on its own major version from its minor on (``sm_90a`` only where it is exact)."""
        major, minor = _compute_capability(binary.arch)
        exact = binary.arch[-1].isalpha()
        runs = major == self._cc[0] and (minor == self._cc[1] if exact else minor <= self._cc[1])
        return ".cubin" if runs else ".ptx"

    def _attribute(self, number: int) -> int:
        return int(self._cp.cuda.runtime.deviceGetAttribute(number, self._id))

    def _described(self, gpu_name: str) -> Target:
        """The target of a GPU that has no data sheet, from the driver's attributes."""
        bus_bytes = self._attribute(_MEMORY_BUS_BITS) / 8
        return Target.from_limits(
            marketing_name=gpu_name,
            arch=f"sm_{self._cc[0]}{self._cc[1]}",
            sms=self._attribute(_SM_COUNT),
            smem_per_sm_bytes=self._attribute(_SMEM_PER_SM),
            smem_per_block_bytes=self._attribute(_SMEM_PER_BLOCK_OPTIN),
            regs_per_sm=self._attribute(_REGS_PER_SM),
            max_threads_per_sm=self._attribute(_MAX_THREADS_PER_SM),
            max_threads_per_block=self._attribute(_MAX_THREADS_PER_BLOCK),
            max_blocks_per_sm=self._attribute(_MAX_BLOCKS_PER_SM),
            l2_bytes=self._attribute(_L2_BYTES),
            boost_clock_mhz=self._attribute(_CLOCK_RATE_KHZ) // 1000,
            dram_gbps=2 * self._attribute(_MEMORY_CLOCK_RATE_KHZ) * bus_bytes / 1e6,  # double data rate
        )


class _Buffers:
    """Q, K, V and a poisoned O on the GPU, with guard bands."""

    def __init__(self, device: CudaDevice, inputs: AttentionInputs) -> None:
        self._device = device
        self._inputs = inputs
        self._before = input_images(inputs)
        cp = device.cupy
        with device.stream:
            self._arrays = {name: cp.asarray(image) for name, image in self._before.items()}
        device.stream.synchronize()
        q_place, k_place, v_place, o_place = (
            Placement(
                int(self._arrays[name].data.ptr) + GUARD_BYTES,
                inputs.q_strides if name in "qo" else inputs.kv_strides,
            )
            for name in TENSORS
        )
        self.params = pack_params(inputs.problem, q_place, k_place, v_place, o_place)

    def output(self) -> Bits:
        """Checks guards and inputs and fetches O.

        Raises:
            LaunchError: a guard band or an input changed.
        """
        with self._device.stream:
            after = {name: array.get(stream=self._device.stream) for name, array in self._arrays.items()}
        self._device.stream.synchronize()
        check_images(self._before, after)
        return output_bits(self._inputs, after["o"])


class CudaKernel:
    """A kernel that is loaded on the GPU. Made by :meth:`CudaDevice.load`."""

    def __init__(self, device: CudaDevice, kernel: Kernel, function: Any) -> None:
        self._device = device
        self._launch = kernel.source.launch
        self._function = function

    def attention(self, inputs: AttentionInputs) -> Bits:
        """Runs the kernel once; see :class:`~evoengine.device.base.LoadedKernel`."""
        buffers: _Buffers | None = None
        try:
            with self._device.faults("the kernel failed"):
                buffers = _Buffers(self._device, inputs)
                with self._device.stream:
                    self.enqueue(inputs, buffers.params)
                self._device.stream.synchronize()
                return buffers.output()
        finally:
            self._device.retire(buffers, self._function)

    def stopwatch(self, inputs: AttentionInputs, options: StopwatchOptions) -> CudaStopwatch:
        """Captures calls in a CUDA graph; see :class:`~evoengine.device.base.TimedKernel`."""
        return CudaStopwatch(self._device, self, inputs, options)

    def enqueue(self, inputs: AttentionInputs, params: np.ndarray) -> None:
        """Puts one launch on the current stream."""
        plan = self._launch.plan(inputs.problem)
        self._function(plan.grid, (plan.threads, 1, 1), (params,), shared_mem=plan.smem_bytes)

    def close(self) -> None:
        """Drops the function; CuPy keeps the module until the process ends."""
        self._device.retire(self._function)
        self._function = None


class CudaStopwatch:
    """One kernel's calls in a CUDA graph; a second graph with only the flushes, when the cache is to be cold."""

    def __init__(
        self, device: CudaDevice, kernel: CudaKernel, inputs: AttentionInputs, options: StopwatchOptions
    ) -> None:
        self._device = device
        self._calls = options.calls
        self._flush: Any = None
        self._flush_only: Any = None
        self._lead: Any = None
        self._graph: Any = None
        self._buffers: _Buffers | None = None
        try:
            with device.faults("the kernel failed while timed"):
                self._start, self._end = device.cupy.cuda.Event(), device.cupy.cuda.Event()
                self._buffers = _Buffers(device, inputs)
                if options.cold:
                    with device.stream:
                        self._flush = device.cupy.empty(2 * device.target.l2_bytes, device.cupy.uint8)
                    self._flush_only = self._capture(None, inputs, options.calls)
                else:
                    self._lead = self._capture(kernel, inputs, options.lead_calls)
                self._graph = self._capture(kernel, inputs, options.calls)
        except LaunchError:
            self.close()
            raise

    def sample_us(self) -> float:
        """One replay, per call, in microseconds; the flushes are taken off."""
        with self._device.faults("the kernel failed while timed"):
            if self._lead is not None:
                self._lead.launch(self._device.stream)
            total_us = self._replay_us(self._graph)
            if self._flush_only is not None:
                total_us -= self._replay_us(self._flush_only)
        return total_us / self._calls

    def close(self) -> None:
        """Frees graphs and buffers."""
        self._device.retire(self._graph, self._lead, self._flush_only, self._flush, self._buffers)
        self._graph = self._lead = self._flush_only = self._flush = self._buffers = None

    def _replay_us(self, graph: Any) -> float:
        stream = self._device.stream
        self._start.record(stream)
        graph.launch(stream)
        self._end.record(stream)
        self._end.synchronize()
        return float(self._device.cupy.cuda.get_elapsed_time(self._start, self._end)) * 1e3

    def _once(self, kernel: CudaKernel | None, inputs: AttentionInputs) -> None:
        if self._flush is not None:
            self._flush.data.memset_async(0, self._flush.nbytes, self._device.stream)
        if kernel is not None and self._buffers is not None:
            kernel.enqueue(inputs, self._buffers.params)

    def _capture(self, kernel: CudaKernel | None, inputs: AttentionInputs, calls: int) -> Any:
        """Runs one call eagerly, so that everything is loaded, then captures all calls."""
        stream = self._device.stream
        with stream:
            self._once(kernel, inputs)
            stream.synchronize()
            stream.begin_capture()
            try:
                for _ in range(calls):
                    self._once(kernel, inputs)
            finally:
                graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        return graph


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            f"CuPy cannot be imported ({_one_line(error)}): 'python -m evoengine doctor' names the remedy"
        ) from error
    return cupy


def _compute_capability(arch: str) -> tuple[int, int]:
    """``sm_89`` is (8, 9), ``sm_90a`` is (9, 0), ``sm_120`` is (12, 0).

    Raises:
        UsageError: not an architecture.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if match is None:
        raise UsageError(f"'{arch}' is not an architecture: give one like sm_89")
    return int(match.group(1)), int(match.group(2))


def _version(number: int) -> str:
    """CUDA's 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
