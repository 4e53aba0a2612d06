"""What CuPy does not offer of the CUDA driver: what a captured graph launches, the part of L2 set aside, a GPU's UUID.

``cuda.bindings`` is imported inside the functions: it is there on every machine, but a driver need not be.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from evoengine.errors import DefectError, LaunchError

UUID_BYTES: Final = 16
"""Of a ``CUuuid``."""

_FIRST_KERNEL_FAULT: Final = 700
"""CUDA_ERROR_ILLEGAL_ADDRESS; errors from here on are those of kernels, told by whatever is asked next."""


def captured_launches(stream: int) -> tuple[str, ...]:
    """What a stream that is being captured has recorded so far, in the order in which it will run.

    Args:
        stream: handle of the stream; a linear chain of work is expected on it.

    Returns:
        The entry's name for each kernel node; nodes that only fill or copy memory are left out; any other node is named
        in angle brackets.

    Raises:
        LaunchError: the graph is no chain, or a kernel has failed before.
        DefectError: the driver refuses.
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
    """Makes all lines of the L2 cache ordinary ones, and lets nothing set any aside.

    A GPU whose L2 cache cannot be divided has nothing to release, nor has a context in which no part is set aside.
    That is asked first: on an H200, a process that resets the cache before each of some graphs that it makes pays
    0.17 us more for every launch in a graph from then on.

    Raises:
        DefectError: the driver refuses.
    """
    if persisting_l2_bytes() == 0:
        return
    driver = _driver()
    _call(driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0))
    _call(driver.cuCtxResetPersistingL2Cache())


def persisting_l2_bytes() -> int:
    """Bytes of the L2 cache that may be set aside in this context; 0 where the cache cannot be divided.

    Raises:
        DefectError: the driver refuses.
    """
    driver = _driver()
    answer = driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    if answer[0] in (driver.CUresult.CUDA_ERROR_NOT_SUPPORTED, driver.CUresult.CUDA_ERROR_UNSUPPORTED_LIMIT):
        return 0
    return int(_call(answer)[0])


def gpu_uuid(ordinal: int, name: str) -> str:
    """Which GPU it is, wherever it is plugged in; empty where the driver does not say.

    Args:
        ordinal: the number that CUDA gives it in this process.
        name: as the driver gives it.
    """
    driver = _driver()
    failed, device = driver.cuDeviceGet(ordinal)
    if int(failed) == 0:
        failed, found = driver.cuDeviceGetUuid(device)
    return "" if int(failed) else uuid_text(bytes(found.bytes), name)


def uuid_text(raw: bytes, name: str) -> str:
    """A UUID as ``nvidia-smi -L`` prints it and CUDA_VISIBLE_DEVICES takes it.

    Args:
        raw: 16 bytes.
        name: of the GPU; a slice of one has it in its name.
    """
    return f"{'MIG' if ' MIG ' in name else 'GPU'}-{uuid.UUID(bytes=raw)}"


def _chain(driver: Any, graph: Any) -> list[Any]:
    """All nodes of a graph, each the only one that follows the one before."""
    count = _call(driver.cuGraphGetNodes(graph))[1]
    nodes: list[Any] = []
    following = _listed(driver.cuGraphGetRootNodes, graph)
    while following:
        if len(following) > 1 or len(nodes) == count:
            raise LaunchError("the captured graph is no chain of launches")
        nodes.append(following[0])
        following = _listed(driver.cuGraphNodeGetDependentNodes, following[0])
    if len(nodes) != count:
        raise LaunchError(f"only {len(nodes)} of the captured graph's {count} nodes hang together")
    return nodes


def _listed(ask: Any, handle: Any) -> list[Any]:
    """The nodes that a function lists; it is asked for their number first, which it tells last."""
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
    """What a driver function returned besides its error code.

    Raises:
        LaunchError: a kernel has failed before.
        DefectError: the driver does not take the question, which no candidate causes.
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
