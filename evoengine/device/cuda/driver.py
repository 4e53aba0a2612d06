"""Functions of the CUDA driver that CuPy lacks: captured launches, persisting L2 cache, UUID of a GPU, tensor maps.

``cuda.bindings`` is imported inside the functions: this takes tens of milliseconds, and few processes need it.
"""

from __future__ import annotations

import ctypes
import uuid
from typing import TYPE_CHECKING, Any, Final

from evoengine.errors import DefectError, LaunchError
from evoengine.model import DType
from evoengine.runtime.map_encoding import MapBlock, MapGeometry, map_encoder

if TYPE_CHECKING:  # its module needs NumPy, which most processes that look for a GPU do not
    from evoengine.kernel.tensor_maps import TensorMapGeometry

UUID_BYTES: Final = 16
"""Size of a ``CUuuid`` in bytes."""

_FIRST_KERNEL_FAULT: Final = 700
"""CUDA_ERROR_ILLEGAL_ADDRESS; errors from here on are kernel faults, which the next driver call reports."""


def captured_launches(stream: int) -> tuple[str, ...]:
    """Lists the nodes that a capturing stream has recorded so far, in execution order.

    Args:
        stream: Handle of the stream; its work must be a linear chain.

    Returns:
        The entry's name for each kernel node. Nodes that only fill or copy memory are left out; any other node is named
        in angle brackets.

    Raises:
        LaunchError: The graph is not a chain, or a kernel has failed before.
        DefectError: The driver refused the call.
    """
    driver = _driver()
    graph = _call(driver.cuStreamGetCaptureInfo(stream))[2]
    nodes = _chain(driver, graph)
    kinds = driver.CUgraphNodeType
    names = []
    for node in nodes:
        kind = _call(driver.cuGraphNodeGetType(node))[0]
        if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
            names.append(_entry(driver, node))
        elif kind not in (kinds.CU_GRAPH_NODE_TYPE_MEMSET, kinds.CU_GRAPH_NODE_TYPE_MEMCPY):
            names.append(f"<{kinds(kind).name.removeprefix('CU_GRAPH_NODE_TYPE_').lower()}>")
    return tuple(names)


def release_persisting_l2() -> None:
    """Resets all persisting lines of the L2 cache and sets the persisting size to zero.

    The reset is skipped if no part of the cache is set aside. This matters: on an H200, resetting the cache before
    graphs are created adds 0.17 us to every later graph launch of the process.

    Raises:
        DefectError: The driver refused the call.
    """
    if persisting_l2_bytes() == 0:
        return
    driver = _driver()
    _call(driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0))
    _call(driver.cuCtxResetPersistingL2Cache())


def persisting_l2_bytes() -> int:
    """Returns the bytes of the L2 cache that may be set aside in this context; 0 if the GPU does not support it.

    Raises:
        DefectError: The driver refused the call.
    """
    driver = _driver()
    answer = driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    if answer[0] in (driver.CUresult.CUDA_ERROR_NOT_SUPPORTED, driver.CUresult.CUDA_ERROR_UNSUPPORTED_LIMIT):
        return 0
    return int(_call(answer)[0])


def gpu_uuid(ordinal: int, name: str) -> str:
    """Returns the UUID of a GPU; empty if the driver does not report it.

    Args:
        ordinal: CUDA's number of the GPU in this process.
        name: Name of the GPU as the driver reports it.
    """
    driver = _driver()
    failed, device = driver.cuDeviceGet(ordinal)
    if int(failed) == 0:
        failed, found = driver.cuDeviceGetUuid(device)
    return "" if int(failed) else uuid_text(bytes(found.bytes), name)


def uuid_text(raw: bytes, name: str) -> str:
    """Formats a UUID as ``nvidia-smi -L`` prints it and CUDA_VISIBLE_DEVICES accepts it.

    Args:
        raw: The 16 bytes of the UUID.
        name: Name of the GPU; the name of a MIG slice contains "MIG".
    """
    return f"{'MIG' if ' MIG ' in name else 'GPU'}-{uuid.UUID(bytes=raw)}"


def encode_tensor_map(geometry: TensorMapGeometry) -> bytes:
    """Encodes a tensor map for a kernel argument.

    Raises:
        LaunchError: The driver rejects the geometry, or is too old.
    """
    block = MapBlock(1)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        encode = map_encoder(cuda, _runtime_geometry(geometry))
    except (OSError, AttributeError) as error:
        raise LaunchError(f"tensor maps need a driver of CUDA 12.0 or newer: {error}") from error
    status = encode(block.address, geometry.address)
    if status != 0:
        raise LaunchError(f"the CUDA driver rejects a tensor map with status {status}: {geometry}")
    return block.read()


def _runtime_geometry(geometry: TensorMapGeometry) -> MapGeometry:
    bf16 = geometry.element is DType.BF16
    return MapGeometry(geometry.sizes, geometry.strides_bytes, geometry.box, bf16, geometry.swizzle_bytes)


def _chain(driver: Any, graph: Any) -> list[Any]:
    """Returns all nodes of a graph that is a linear chain."""
    count = _call(driver.cuGraphGetNodes(graph))[1]
    nodes: list[Any] = []
    following = _listed(driver.cuGraphGetRootNodes, graph)
    while following:
        if len(following) > 1 or len(nodes) == count:
            raise LaunchError("the captured graph is not a chain of launches")
        nodes.append(following[0])
        following = _listed(driver.cuGraphNodeGetDependentNodes, following[0])
    if len(nodes) != count:
        raise LaunchError(f"only {len(nodes)} of the captured graph's {count} nodes are connected")
    return nodes


def _listed(ask: Any, handle: Any) -> list[Any]:
    """Returns the nodes that a driver function lists; a first call gets their number, the last value returned."""
    count = _call(ask(handle))[-1]
    return list(_call(ask(handle, count))[0])[:count] if count else []


def _entry(driver: Any, node: Any) -> str:
    params = _call(driver.cuGraphKernelNodeGetParams(node))[0]
    if int(params.func):
        name = _call(driver.cuFuncGetName(params.func))[0]
    else:
        name = _call(driver.cuKernelGetName(params.kern))[0]
    return name.decode() if isinstance(name, bytes) else str(name)


def _call(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the results of a driver function without its error code.

    Raises:
        LaunchError: A kernel has failed before.
        DefectError: The driver refused the call, which no candidate can cause.
    """
    error, *results = answer
    if int(error) >= _FIRST_KERNEL_FAULT:
        raise LaunchError(f"the kernel failed: {error.name}")
    if int(error) != 0:
        raise DefectError(f"the CUDA driver refused with {error.name}: 'python -m evoengine doctor' shows its version")
    return tuple(results)


def _driver() -> Any:
    from cuda.bindings import driver

    return driver
