"""The CUDA device: binaries run through ``cupy.RawModule`` and are timed by CUDA-graph replay.

The only importer of CuPy, which is loaded when a device is opened.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.device.architecture import compute_capability, runs_machine_code
from evoengine.device.base import KernelStopwatch, StopwatchOptions
from evoengine.device.buffers import GpuBuffers
from evoengine.device.deadline import PATIENCE_S, call_limit_s, done_within
from evoengine.device.driver import captured_launches, release_persisting_l2
from evoengine.device.eager import EagerStopwatch
from evoengine.errors import CandidateError, CandidateTimeoutError, LaunchError, MissingDependencyError, UsageError
from evoengine.kernel.artifact import Binary, Kernel, Workspace
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.model import DeviceInfo, Problem
from evoengine.target import Target, target_for_gpu

_DEFAULT_SMEM_BYTES: Final = 48 * 1024
"""Dynamic shared memory above this must be opted in to."""

_NOT_READY: Final = 600
"""cudaErrorNotReady: a stream has still work to do."""

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
        patience_s: how long a wait may last however small its kernel; more where a tool slows every kernel down.

    Raises:
        MissingDependencyError: no CuPy, no driver, or no GPU.
        UsageError: the GPU is older than ``arch``.
    """

    def __init__(self, arch: str | None = None, *, patience_s: float = PATIENCE_S) -> None:
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
        if arch is not None and compute_capability(arch) > self._cc:
            raise UsageError(f"{gpu_name} is {own_arch} and cannot run {arch}: leave --arch out or give an older one")
        bus = str(runtime.deviceGetPCIBusId(self._id))
        self._info = DeviceInfo("cuda", gpu_name, arch or own_arch, predicted=False, driver=driver, pci_bus_id=bus)
        self._target = target_for_gpu(gpu_name, int(properties["totalGlobalMem"])) or self._described(gpu_name)
        self._stream = self._cp.cuda.Stream(non_blocking=True)
        self._folder = Path(tempfile.mkdtemp(prefix="evoengine-"))
        self._serial = itertools.count()
        self._patience_s = patience_s
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
            module = self._cp.RawModule(path=str(path))
            functions = {entry: module.get_function(entry) for entry in kernel.source.launch.entries}
            path.unlink()
            for launch in kernel.source.launch.launches:
                if launch.smem_bytes > _DEFAULT_SMEM_BYTES:
                    functions[launch.entry].max_dynamic_shared_size_bytes = launch.smem_bytes
        return CudaKernel(self, kernel, functions)

    def buffers(self, inputs: AttentionInputs, workspace: Workspace) -> GpuBuffers:
        """Memory for a call on these inputs."""
        return GpuBuffers(self._cp, self._stream, inputs, workspace)

    def close(self) -> None:
        """Removes the temporary files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def finish(self, problem: Problem, calls: int = 1) -> None:
        """Waits until that many calls on the stream are done; a hang ends only with this process.

        Raises:
            CandidateTimeoutError: they are not done in the time that the slowest honest kernel needs.
        """
        limit_s = call_limit_s(problem, self._target, calls, self._patience_s)
        query, stream = self._cp.cuda.runtime.streamQuery, self._stream
        if not done_within(lambda: query(stream.ptr) != _NOT_READY, limit_s):
            self._healthy = False
            raise CandidateTimeoutError(f"{calls} x {problem.key} not done within {limit_s:.2g} s: the kernel hangs")
        stream.synchronize()  # it has nothing to wait for, but tells what went wrong

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
        return ".cubin" if runs_machine_code(binary.arch, self._cc) else ".ptx"

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


class CudaKernel:
    """A kernel that is loaded on the GPU. Made by :meth:`CudaDevice.load`.

    Args:
        device: where it was loaded.
        kernel: its launch says what a call consists of.
        functions: CuPy's functions by entry.
    """

    def __init__(self, device: CudaDevice, kernel: Kernel, functions: Mapping[str, Any]) -> None:
        self._device = device
        self._launch = kernel.source.launch
        self._functions = functions
        self._planned: Problem | None = None
        self._launches: tuple[Callable[[tuple[np.ndarray]], object], ...] = ()

    def attention(self, inputs: AttentionInputs) -> AttentionOutput:
        """Runs the kernel once; see :class:`~evoengine.device.base.LoadedKernel`."""
        buffers: GpuBuffers | None = None
        try:
            with self._device.faults("the kernel failed"):
                buffers = self._device.buffers(inputs, self.workspace(inputs.problem))
                with self._device.stream:
                    self.enqueue(inputs, buffers.params)
                self._device.finish(inputs.problem)
                return buffers.output()
        finally:
            self._device.retire(buffers, self._functions)

    def stopwatch(self, inputs: AttentionInputs, options: StopwatchOptions) -> KernelStopwatch:
        """Captures calls in a CUDA graph, unless they are eager; see :class:`~evoengine.device.base.TimedKernel`."""
        kind = EagerStopwatch if options.eager else CudaStopwatch
        return kind(self._device, self, inputs, options)

    def workspace(self, problem: Problem) -> Workspace:
        """The memory that a call of this problem needs besides its tensors."""
        return self._launch.workspace(problem)

    def enqueue(self, inputs: AttentionInputs, params: np.ndarray) -> None:
        """Puts all launches of one call on the current stream.

        The plan of the latest problem is kept: host time of a call is measured through here.
        """
        if inputs.problem is not self._planned:
            self._launches = tuple(
                partial(self._functions[step.entry], step.grid, (step.threads, 1, 1), shared_mem=step.smem_bytes)
                for step in self._launch.steps(inputs.problem)
            )
            self._planned = inputs.problem
        for launch in self._launches:
            launch((params,))

    def close(self) -> None:
        """Drops the functions; CuPy keeps the module until the process ends."""
        self._device.retire(self._functions, self._launches)
        self._functions, self._launches, self._planned = {}, (), None


class CudaStopwatch:
    """One kernel's calls in a CUDA graph; a second graph with only the flushes, when the cache is to be cold."""

    def __init__(
        self, device: CudaDevice, kernel: CudaKernel, inputs: AttentionInputs, options: StopwatchOptions
    ) -> None:
        self._device = device
        self._problem = inputs.problem
        self._calls = options.calls
        self._flush: Any = None
        self._flush_only: Any = None
        self._lead: Any = None
        self._graph: Any = None
        self._buffers: GpuBuffers | None = None
        self.launched: tuple[str, ...] = ()
        try:
            with device.faults("the kernel failed while timed"):
                release_persisting_l2()
                self._start, self._end = device.cupy.cuda.Event(), device.cupy.cuda.Event()
                self._buffers = device.buffers(inputs, kernel.workspace(inputs.problem))
                if options.cold:
                    with device.stream:
                        self._flush = device.cupy.empty(2 * device.target.l2_bytes, device.cupy.uint8)
                    self._flush_only = self._capture(None, inputs, options.calls)
                else:
                    self._lead = self._capture(kernel, inputs, options.lead_calls)
                self._graph = self._capture(kernel, inputs, options.calls)  # the last one: it gives the launches
        except CandidateError:
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

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """What the captured calls compute; see :class:`~evoengine.device.base.KernelStopwatch`."""
        if self._buffers is None:
            raise LaunchError("a closed stopwatch replays nothing")
        with self._device.faults("the kernel failed while replayed"):
            self._buffers.refill(inputs)
            self._graph.launch(self._device.stream)
            self._device.finish(self._problem, self._calls)
            return self._buffers.output()

    def spin(self, replays: int) -> None:
        """Replays without a pause; see :class:`~evoengine.device.base.KernelStopwatch`."""
        with self._device.faults("the kernel failed while timed"):
            for _ in range(replays):
                self._graph.launch(self._device.stream)
            self._device.finish(self._problem, replays * self._calls)

    def close(self) -> None:
        """Frees graphs and buffers."""
        self._device.retire(self._graph, self._lead, self._flush_only, self._flush, self._buffers)
        self._graph = self._lead = self._flush_only = self._flush = self._buffers = None

    def _replay_us(self, graph: Any) -> float:
        stream = self._device.stream
        self._start.record(stream)
        graph.launch(stream)
        self._end.record(stream)
        self._device.finish(self._problem, self._calls)
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
            self._device.finish(self._problem)
            stream.begin_capture()
            try:
                for _ in range(calls):
                    self._once(kernel, inputs)
                self.launched = captured_launches(stream.ptr)
            finally:
                graph = stream.end_capture()
        graph.launch(stream)
        self._device.finish(self._problem, calls)
        return graph


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            f"CuPy cannot be imported ({_one_line(error)}): 'python -m evoengine doctor' names the remedy"
        ) from error
    return cupy


def _version(number: int) -> str:
    """CUDA's 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
