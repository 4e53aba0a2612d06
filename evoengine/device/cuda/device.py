"""The CUDA device: binaries run through ``cupy.RawModule`` and are timed by CUDA-graph replay.

This module is the only importer of CuPy, which is loaded when a device is opened.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from evoengine.device.architecture import compute_capability, runs_machine_code
from evoengine.device.cuda import device_checksum
from evoengine.device.cuda import shared_memory_poison as poison
from evoengine.device.cuda.buffers import GpuBuffers
from evoengine.device.cuda.deadline import PATIENCE_S, call_limit_s, done_within
from evoengine.device.cuda.device_checksum import DeviceChecksums
from evoengine.device.cuda.driver import encode_tensor_map, gpu_uuid
from evoengine.device.cuda.eager_timing import EagerStopwatch
from evoengine.device.cuda.fresh_timing import FreshStopwatch
from evoengine.device.cuda.graph_timing import GraphStopwatch
from evoengine.device.cuda.resident_inputs import RESIDENT_BYTES, ResidentInputs, kept_bytes_on
from evoengine.device.cuda.shared_memory_poison import SharedMemoryPoison
from evoengine.device.protocols import KernelStopwatch, StopwatchOptions
from evoengine.errors import (
    CandidateTimeoutError,
    DeviceMemoryError,
    EvoEngineError,
    LaunchError,
    MissingDependencyError,
    UsageError,
)
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.compile.nvrtc import run_nvrtc
from evoengine.kernel.records import Binary, Kernel, Workspace
from evoengine.kernel.tensor_maps import MapArgumentCache
from evoengine.model import DeviceInfo, Problem
from evoengine.system.machine_faults import machine_fault_in
from evoengine.system.temporary import TemporaryFolder
from evoengine.target import Target, native_arch, target_for_gpu

_DEFAULT_SMEM_BYTES: Final = 48 * 1024
"""A kernel must opt in to more dynamic shared memory than this."""

_NOT_READY: Final = 600
"""cudaErrorNotReady: the stream has unfinished work."""

_FIRST_CALLS: Final = 4
"""Repeated calls before their checksums are first compared; few, because a call may take long."""
_MOST_CALLS: Final = 64
"""Maximum number of repeated calls between two later comparisons."""

# cudaDeviceAttr numbers: they are stable ABI, and cudaDeviceProp lacks the clock rates since CUDA 13.
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
        arch: Architecture to compile for; None for the GPU's own. Code for an older one is loaded as PTX if its machine
            code does not run.
        patience_s: Minimum time limit of any kernel; it must be larger when a tool slows kernels down.
        resident_bytes: Size from which a buffer is filled and checked on the GPU.

    Raises:
        MissingDependencyError: CuPy, the driver or the GPU is missing.
        UsageError: The GPU is older than ``arch``.
    """

    def __init__(
        self, arch: str | None = None, *, patience_s: float = PATIENCE_S, resident_bytes: int = RESIDENT_BYTES
    ) -> None:
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
        own_arch = self._own_arch = native_arch(*self._cc)
        if arch is not None and compute_capability(arch) > self._cc:
            raise UsageError(f"{gpu_name} is {own_arch} and cannot run {arch}: leave --arch out or give an older one")
        which = {"pci_bus_id": str(runtime.deviceGetPCIBusId(self._id)), "uuid": gpu_uuid(self._id, gpu_name)}
        self._info = DeviceInfo("cuda", gpu_name, arch or own_arch, predicted=False, driver=driver, **which)
        self._target = target_for_gpu(gpu_name, int(properties["totalGlobalMem"])) or self._described(gpu_name)
        self._stream = self._cp.cuda.Stream(non_blocking=True)
        self._folder = TemporaryFolder()
        self._serial = itertools.count()
        self._patience_s = patience_s
        self._baselines_us: dict[Problem, float] = {}
        kept_bytes = kept_bytes_on(int(properties["totalGlobalMem"]))
        self._resident = ResidentInputs(self._cp, self._stream, lambda: self.checksums, resident_bytes, kept_bytes)
        self._healthy = True
        self._kept_alive: list[object] = []

    @property
    def info(self) -> DeviceInfo:
        """GPU name, driver and the architecture that candidates are compiled for."""
        return self._info

    @property
    def target(self) -> Target:
        """The data sheet of this GPU; without one, the limits that the driver reports."""
        return self._target

    @property
    def healthy(self) -> bool:
        """False after a fault from which only a new process recovers."""
        return self._healthy

    @property
    def cupy(self) -> Any:
        """The CuPy module."""
        return self._cp

    @property
    def stream(self) -> Any:
        """The non-blocking stream on which everything runs."""
        return self._stream

    @property
    def resident_inputs(self) -> ResidentInputs:
        """Device copies of large buffers' initial contents."""
        return self._resident

    def load(self, kernel: Kernel) -> CudaKernel:
        """Loads the machine code, or the PTX if the machine code is for another architecture.

        Raises:
            LaunchError: The driver does not accept it, or its source is untrusted and it was not admitted.
        """
        kernel.require_admitted()
        with self.faults("cannot load the kernel"):
            name = f"{kernel.binary.code_hash}-{next(self._serial)}{self._suffix(kernel.binary)}"
            native = name.endswith(".cubin")
            data = kernel.binary.cubin if native else kernel.binary.ptx.encode()
            functions = self._functions(name, data, kernel.source.launch.entries)
            for launch in kernel.source.launch.launches:
                if launch.smem_bytes > _DEFAULT_SMEM_BYTES:
                    functions[launch.entry].max_dynamic_shared_size_bytes = launch.smem_bytes
        return CudaKernel(self, kernel, functions)

    def buffers(
        self, inputs: AttentionInputs, workspace: Workspace, before: AttentionOutput | None = None
    ) -> GpuBuffers:
        """Allocates and fills the memory of a call on these inputs; the outputs hold ``before`` or poison."""
        return GpuBuffers(self._cp, self._stream, inputs, workspace, self._resident, before)

    def learn_pace(self, problem: Problem, baseline_us: float) -> None:
        """Derives the time limit of that problem's kernels from the baseline's time."""
        self._baselines_us[problem] = baseline_us

    def close(self) -> None:
        """Removes the temporary files."""
        self._folder.close()

    def finish(self, problem: Problem, calls: int = 1) -> None:
        """Waits until that many calls on the stream are done; a hanging kernel ends only with this process.

        Raises:
            CandidateTimeoutError: They are not done in the time that the slowest valid kernel needs.
        """
        limit_s = call_limit_s(problem, self._target, calls, self._patience_s, self._baselines_us.get(problem))
        query, stream = self._cp.cuda.runtime.streamQuery, self._stream
        if not done_within(lambda: query(stream.ptr) != _NOT_READY, limit_s):
            self._healthy = False
            raise CandidateTimeoutError(f"{calls} x {problem.key} not done within {limit_s:.2g} s: the kernel hangs")
        stream.synchronize()  # nothing is left to wait for; this raises the kernel's error

    @contextmanager
    def faults(self, doing: str) -> Iterator[None]:
        """Converts CUDA's errors to LaunchError, or to DeviceMemoryError if memory is short; records a lost device."""
        try:
            yield
        except self._cuda_errors() as error:
            self._note_health()
            short = isinstance(error, MemoryError) or machine_fault_in(str(error)) is not None
            raise (DeviceMemoryError if short else LaunchError)(f"{doing}: {_one_line(error)}") from error

    def retire(self, *objects: object) -> None:
        """Keeps objects of a lost context alive, because freeing them would raise errors again."""
        if not self._healthy:
            self._kept_alive.extend(objects)

    def _functions(self, name: str, data: bytes, entries: Iterable[str]) -> dict[str, Any]:
        """Returns CuPy's functions of a binary. RawModule is memoised by path, so each binary gets a unique name."""
        path = self._folder.path / name
        path.write_bytes(data)
        module = self._cp.RawModule(path=str(path))
        functions = {entry: module.get_function(entry) for entry in entries}
        path.unlink()
        return functions

    @functools.cached_property
    def checksums(self) -> DeviceChecksums | None:
        """The checksum kernel; None on a GPU that NVRTC does not support, where buffers go through the host."""
        function = self._own_kernel(device_checksum.ENTRY, device_checksum.SOURCE)
        return None if function is None else DeviceChecksums(self._cp, self._stream, function)

    @functools.cached_property
    def shared_memory_poison(self) -> SharedMemoryPoison | None:
        """The kernel that fills shared memory; None on a GPU that NVRTC does not support or that refuses its launch."""
        function = self._own_kernel(poison.ENTRY, poison.SOURCE)
        if function is None:
            return None
        cta_bytes = self._attribute(_SMEM_PER_BLOCK_OPTIN)
        found = SharedMemoryPoison(function, cta_bytes, self._attribute(_SM_COUNT))
        try:
            function.max_dynamic_shared_size_bytes = cta_bytes
            with self._stream:
                found.fill()
            self._stream.synchronize()
        except self._cuda_errors():
            return None
        return found

    def _own_kernel(self, entry: str, source: str) -> Any:
        """Compiles and loads a kernel of this package; None on a GPU that NVRTC does not support."""
        try:
            cubin = run_nvrtc(source, f"/{entry}.cu", [f"-arch={self._own_arch}", "--std=c++17"]).cubin
        except EvoEngineError:
            return None
        return self._functions(f"{entry}-{next(self._serial)}.cubin", cubin, (entry,))[entry]

    def _note_health(self) -> None:
        try:
            self._cp.cuda.runtime.deviceSynchronize()
        except self._cuda_errors():
            self._healthy = False

    def _cuda_errors(self) -> tuple[type[Exception], ...]:
        cuda = self._cp.cuda
        return (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError)

    def _suffix(self, binary: Binary) -> str:
        return ".cubin" if runs_machine_code(binary.arch, self._cc) else ".ptx"

    def _attribute(self, number: int) -> int:
        return int(self._cp.cuda.runtime.deviceGetAttribute(number, self._id))

    def _described(self, gpu_name: str) -> Target:
        """Builds the target of a GPU without a data sheet from the driver's attributes."""
        bus_bytes = self._attribute(_MEMORY_BUS_BITS) / 8
        return Target.from_limits(
            marketing_name=gpu_name,
            arch=self._own_arch,
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
            dram_bytes=int(self._cp.cuda.Device(self._id).mem_info[1]),
        )


class CudaKernel:
    """A kernel that is loaded on the GPU. Build it with :meth:`CudaDevice.load`.

    Args:
        device: Device on which the kernel is loaded.
        kernel: The kernel; its launch plan lists the launches of a call.
        functions: CuPy's functions by entry.
    """

    def __init__(self, device: CudaDevice, kernel: Kernel, functions: Mapping[str, Any]) -> None:
        self._device = device
        self._launch = kernel.source.launch
        self._untrusted = kernel.source.untrusted
        self._functions = functions
        self._planned: Problem | None = None
        self._launches: tuple[Callable[[tuple[np.ndarray, ...]], object], ...] = ()
        self._maps: MapArgumentCache | None = None

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        """Runs the kernel once; see :class:`~evoengine.device.protocols.LoadedKernel`."""
        buffers: GpuBuffers | None = None
        try:
            with self._device.faults("the kernel failed"):
                buffers = self._device.buffers(inputs, self.workspace(inputs.problem), before)
                poison_kernel = self._device.shared_memory_poison
                with self._device.stream:
                    if poison_kernel is not None:
                        poison_kernel.fill()
                    self.enqueue(inputs, buffers.params)
                self._device.finish(inputs.problem)
                return buffers.output()
        finally:
            self._device.retire(buffers, self._functions)

    def stopwatch(self, inputs: AttentionInputs, options: StopwatchOptions) -> KernelStopwatch:
        """Captures calls in a graph unless they are eager; see :class:`~evoengine.device.protocols.TimedKernel`."""
        fresh = options.fresh or self._untrusted
        if options.eager and self._untrusted:
            raise LaunchError("a generated kernel cannot be timed call by call: leave --eager out")
        kind = EagerStopwatch if options.eager else FreshStopwatch if fresh else GraphStopwatch
        return kind(self._device, self, inputs, options)

    def first_unequal(self, inputs: AttentionInputs, seconds: float) -> int | None:
        """Repeats a call; see :class:`~evoengine.device.protocols.RepeatableKernel`."""
        checksums = self._device.checksums
        if checksums is None:
            return None
        buffers: GpuBuffers | None = None
        try:
            with self._device.faults("the kernel failed when it was called again"):
                buffers = self._device.buffers(inputs, self.workspace(inputs.problem))
                with self._device.stream:
                    return self._first_unequal(inputs, buffers, checksums, time.perf_counter() + seconds)
        finally:
            self._device.retire(buffers, self._functions)

    def _first_unequal(
        self, inputs: AttentionInputs, buffers: GpuBuffers, checksums: DeviceChecksums, end_s: float
    ) -> int | None:
        first: int | None = None
        calls, count = 0, _FIRST_CALLS
        while time.perf_counter() < end_s:
            sums = self._device.cupy.zeros(count, np.uint64)
            for place in range(count):
                self.enqueue(inputs, buffers.params)
                for output in buffers.outputs_on_gpu:
                    checksums.add(output, sums[place : place + 1])
            self._device.finish(inputs.problem, count)
            found = sums.get()
            first = int(found[0]) if first is None else first
            unequal = np.flatnonzero(found != first)
            if unequal.size:
                return calls + int(unequal[0]) + 1
            calls, count = calls + count, min(2 * count, _MOST_CALLS)
        return None

    def workspace(self, problem: Problem) -> Workspace:
        return self._launch.workspace(problem)

    def enqueue(self, inputs: AttentionInputs, params: np.ndarray) -> None:
        """Enqueues all launches of one call on the current stream.

        The plan of the latest problem and the tensor maps of its calls are cached, because the host time of a call is
        measured through this method.
        """
        if inputs.problem is not self._planned:
            self._launches = tuple(
                partial(self._functions[step.entry], step.grid, (step.threads, 1, 1), shared_mem=step.smem_bytes)
                for step in self._launch.steps(inputs.problem)
            )
            maps = self._launch.maps
            self._maps = MapArgumentCache(maps, inputs.problem, encode_tensor_map) if maps else None
            self._planned = inputs.problem
        blocks = (params,) if self._maps is None else (params, self._maps.of(params))
        arguments = tuple(_without_fields(block) for block in blocks)
        for launch in self._launches:
            launch(arguments)

    def close(self) -> None:
        """Drops the functions; CuPy keeps the module until the process ends."""
        self._device.retire(self._functions, self._launches)
        self._functions, self._launches, self._planned, self._maps = {}, (), None, None


def _without_fields(block: np.ndarray) -> np.ndarray:
    """Returns a view without fields, which CuPy also passes by value: it would list all fields at every launch."""
    return block.view(f"V{block.itemsize}")


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            f"CuPy cannot be imported ({_one_line(error)}): 'python -m evoengine doctor' names the remedy"
        ) from error
    return cupy


def _version(number: int) -> str:
    """Formats a CUDA version number: 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
