"""A program that runs one call of one kernel on the GPU and nothing else, for compute-sanitizer and Nsight Compute.

``python -m evoengine.device.tools.launcher`` opens the GPU, which takes most of its time, and then reads a line: the
path of a :class:`LaunchJob` in the format of :mod:`evoengine.device.workers.wire`. It prints :data:`LAUNCHED` after the
call, so that a tool without a call to examine is not mistaken for one without findings; on an empty line it ends at
once.

Each buffer is a separate allocation of exactly the permitted size, and the workspace is uninitialised, so that the
tools detect accesses outside a buffer and reads of unwritten memory. The driver is called directly, without a memory
pool.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.device.architecture import runs_machine_code
from evoengine.device.cuda.driver import encode_tensor_map
from evoengine.device.workers.wire import decode
from evoengine.errors import EvoEngineError
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.call_memory import Role, call_params, call_regions
from evoengine.kernel.memory_layout import CallLayout
from evoengine.kernel.records import Kernel, LaunchPlan, Workspace
from evoengine.kernel.tensor_maps import MapSpec, encode_maps
from evoengine.model import Problem
from evoengine.system.secrets import environment_without_keys

COMMAND: Final = (sys.executable, "-m", "evoengine.device.tools.launcher")
"""Command that starts a launcher, in the environment of :func:`launcher_environment`."""
LAUNCHED: Final = "launcher: the call is over"
"""Last line of a launcher that ran a call."""
_DEFAULT_SMEM_BYTES: Final = 48 * 1024
"""A kernel must opt in to more dynamic shared memory than this."""


@dataclass(frozen=True)
class LaunchJob:
    """One call of one kernel, as data."""

    arch: str
    cubin: bytes
    ptx: str
    """PTX for a GPU that does not run machine code of that architecture."""
    steps: tuple[LaunchPlan, ...]
    workspace: Workspace
    maps: tuple[MapSpec, ...]
    problem: Problem
    layout: CallLayout
    q: bytes
    k: bytes
    v: bytes
    """Buffers of Q, K and V."""
    sink: bytes | None
    scale: float | None

    @classmethod
    def of(cls, kernel: Kernel, inputs: AttentionInputs) -> LaunchJob:
        """Builds the job of a kernel on these inputs.

        Raises:
            LaunchError: The kernel's source is untrusted, and it was not admitted.
        """
        kernel.require_admitted()
        launch, binary, problem = kernel.source.launch, kernel.binary, inputs.problem
        return cls(
            arch=binary.arch,
            cubin=binary.cubin,
            ptx=binary.ptx,
            steps=launch.steps(problem),
            workspace=launch.workspace(problem),
            maps=launch.maps,
            problem=problem,
            layout=inputs.layout,
            q=inputs.q_memory.tobytes(),
            k=inputs.k_memory.tobytes(),
            v=inputs.v_memory.tobytes(),
            sink=None if inputs.sink is None else inputs.sink.tobytes(),
            scale=inputs.scale,
        )

    def inputs(self) -> AttentionInputs:
        """Rebuilds the inputs from their bytes."""
        q, k, v = (np.frombuffer(data, np.uint16) for data in (self.q, self.k, self.v))
        sink = None if self.sink is None else np.frombuffer(self.sink, np.float32)
        return AttentionInputs(self.problem, q, k, v, self.layout, sink, self.scale)


def launcher_environment() -> dict[str, str]:
    """Returns this process's environment without keys, in which Python finds this package."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**environment_without_keys(), "PYTHONPATH": path}


def open_gpu() -> Any:
    """Creates a context on the GPU.

    Returns:
        The device.

    Raises:
        RuntimeError: A driver call failed.
    """
    from cuda.bindings import driver

    _call(driver.cuInit(0))
    device = _call(driver.cuDeviceGet(0))
    _call(driver.cuCtxSetCurrent(_call(driver.cuDevicePrimaryCtxRetain(device))))
    return device


def launch(job: LaunchJob, device: Any) -> None:
    """Runs the call and waits for its end.

    Args:
        job: Call to run.
        device: GPU, whose context is current.

    Raises:
        RuntimeError: A driver call or the kernel failed.
    """
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute
    numbers = (kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    major, minor = (int(_call(driver.cuDeviceGetAttribute(number, device))) for number in numbers)
    runs = runs_machine_code(job.arch, (major, minor))
    module = _call(driver.cuModuleLoadData(job.cubin if runs else job.ptx.encode() + b"\0"))
    inputs = job.inputs()
    addresses: dict[str, int] = {}
    for region in call_regions(inputs, job.workspace):
        contents = np.ascontiguousarray(region.contents)
        address = _call(driver.cuMemAlloc(max(1, contents.nbytes)))
        if region.role is not Role.SCRATCH and contents.nbytes:
            _call(driver.cuMemcpyHtoD(address, contents.ctypes.data, contents.nbytes))
        addresses[region.name] = int(address)
    params = call_params(inputs, addresses)
    arguments = [params]
    if job.maps:
        arguments.append(encode_maps(job.maps, job.problem, params, encode_tensor_map))
    pointers = np.array([argument.ctypes.data for argument in arguments], np.uint64)
    for step in job.steps:
        function = _call(driver.cuModuleGetFunction(module, step.entry.encode()))
        if step.smem_bytes > _DEFAULT_SMEM_BYTES:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _call(driver.cuFuncSetAttribute(function, attribute, step.smem_bytes))
        block = (step.threads, 1, 1)
        _call(driver.cuLaunchKernel(function, *step.grid, *block, step.smem_bytes, 0, pointers.ctypes.data, 0))
    _call(driver.cuCtxSynchronize())


def main() -> int:
    """Opens the GPU, waits for a job and launches it."""
    try:
        device = open_gpu()
        path = sys.stdin.readline().strip()
        if not path:
            return 0
        launch(decode(LaunchJob, Path(path).read_bytes()), device)
        print(LAUNCHED)  # noqa: T201 - read by the process that started the tool
    except (OSError, ValueError, RuntimeError, EvoEngineError) as error:
        print(f"launcher: {error}", file=sys.stderr)  # noqa: T201 - read by the process that started the tool
        return 1
    return 0


def _call(answer: tuple[Any, ...]) -> Any:
    """Returns the result of a driver function without its error code.

    Raises:
        RuntimeError: The function failed.
    """
    error, *results = answer
    if int(error) != 0:
        raise RuntimeError(error.name)
    return results[0] if results else None


if __name__ == "__main__":
    sys.exit(main())
