"""The arguments of a launch: values packed into the parameter block, host arrays copied to the device and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evoengine.emulator.checks.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.memory.global_memory import Buffer, GlobalMemory
from evoengine.emulator.ptx.records import Param
from evoengine.emulator.semantics.floats import Array


def refuse(detail: str) -> EmulatorError:
    """The error for a launch that no GPU would accept."""
    return EmulatorError(Fault(FaultKind.BAD_LAUNCH, detail))


class HostArrays:
    """The arrays among the arguments of one launch, each with the buffer that stands for it."""

    def __init__(self, memory: GlobalMemory) -> None:
        self._memory = memory
        self._held: list[tuple[Array, Buffer]] = []

    def upload(self, params: Sequence[Param], args: Sequence[Any]) -> list[Any]:
        """The arguments with every array of at least one dimension replaced by a buffer with its contents.

        The same array twice is one buffer, as one pointer is on a GPU.
        """
        return [self._place(param, arg) for param, arg in zip(params, args, strict=False)] + list(args[len(params) :])

    def _place(self, param: Param, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            return value
        for array, buffer in self._held:
            if array is value:
                return buffer
        buffer = self._memory.alloc(value, name=param.name)
        self._held.append((value, buffer))
        return buffer

    def download(self) -> None:
        """Copies back what the kernel left; arrays that may not be written stay."""
        for array, buffer in self._held:
            if array.flags.writeable:
                array[...] = self._memory.read(buffer, array.dtype, array.shape)
            self._memory.free(buffer)


def pack_arguments(params: Sequence[Param], args: Sequence[Any]) -> bytes:
    """The parameter block of a launch.

    Args:
        params: of the entry, in order.
        args: one value each, as :meth:`Emulator.launch <evoengine.emulator.emulator.Emulator.launch>` takes them.

    Raises:
        EmulatorError: the number of arguments or the size of one does not match the entry.
    """
    if len(params) != len(args):
        raise refuse(f"{len(args)} arguments for {len(params)} parameters")
    block = bytearray(max((p.offset + p.size for p in params), default=0))
    for param, value in zip(params, args, strict=True):
        raw = _argument_bytes(value, param)
        if len(raw) != param.size:
            raise refuse(f"argument {param.name}: {len(raw)} bytes given, {param.size} expected")
        block[param.offset : param.offset + param.size] = raw
    return bytes(block)


def _argument_bytes(value: Any, param: Param) -> bytes:
    if isinstance(value, Buffer):
        value = value.address
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, bool | int):
        return (int(value) & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
    if isinstance(value, float):
        return np.array(value, np.float64 if param.size == 8 else np.float32).tobytes()
    if isinstance(value, np.generic | np.ndarray):
        raw: Array = np.asarray(value)
        return raw.tobytes()
    raise refuse(f"argument {param.name}: cannot pass a {type(value).__name__}")
