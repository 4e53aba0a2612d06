"""Arguments of a launch: packs values into the parameter block, and copies host arrays to the device and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.memory.global_memory import Buffer, GlobalMemory
from evoengine.emulator.ptx.records import Param


def bad_launch(detail: str) -> EmulatorError:
    """Error for a launch that no GPU would accept."""
    return EmulatorError(Fault(FaultKind.BAD_LAUNCH, detail))


class HostArrays:
    """NumPy arrays among the arguments of one launch, each with its buffer in global memory."""

    def __init__(self, memory: GlobalMemory) -> None:
        self._memory = memory
        self._uploaded: list[tuple[Array, Buffer]] = []

    def upload(self, params: Sequence[Param], args: Sequence[Any]) -> list[Any]:
        """Replaces every array of at least one dimension in the arguments by a buffer with its contents.

        Two arguments that are the same array get the same buffer.
        """
        uploaded = [self._to_device(param, arg) for param, arg in zip(params, args, strict=False)]
        return uploaded + list(args[len(params) :])

    def _to_device(self, param: Param, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            return value
        for array, buffer in self._uploaded:
            if array is value:
                return buffer
        buffer = self._memory.alloc(value, name=param.name)
        self._uploaded.append((value, buffer))
        return buffer

    def download(self) -> None:
        """Copies the buffers back to their arrays, except read-only ones, and frees them."""
        for array, buffer in self._uploaded:
            if array.flags.writeable:
                array[...] = self._memory.read(buffer, array.dtype, array.shape)
            self._memory.free(buffer)


def pack_arguments(params: Sequence[Param], args: Sequence[Any]) -> bytes:
    """Packs the parameter block of a launch.

    Args:
        params: Parameters of the entry, in order.
        args: One value per parameter, as for :meth:`Emulator.launch <evoengine.emulator.emulator.Emulator.launch>`.

    Raises:
        EmulatorError: The number of arguments or the size of one does not match the entry.
    """
    if len(params) != len(args):
        raise bad_launch(f"{len(args)} arguments for {len(params)} parameters")
    block = bytearray(max((p.offset + p.size for p in params), default=0))
    for param, value in zip(params, args, strict=True):
        raw = _argument_bytes(value, param)
        if len(raw) != param.size:
            raise bad_launch(f"argument {param.name}: {len(raw)} bytes given, {param.size} expected")
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
    raise bad_launch(f"argument {param.name}: cannot pass a {type(value).__name__}")
