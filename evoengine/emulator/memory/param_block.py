"""Arguments of a launch: packs values into the parameter block, and copies host arrays to the device and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.memory.global_memory import Buffer, GlobalMemory
from evoengine.emulator.ptx.records import Param

_FLOATS: Final = frozenset(("f16", "f32", "f64"))
_INTEGERS: Final = frozenset(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))


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
        if value.dtype.hasobject or not value.dtype.isnative:
            raise bad_launch(f"argument {param.name}: cannot pass an array of {value.dtype.str}")
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
        EmulatorError: The number of arguments, or the size or type of one, does not match the entry.
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
    try:
        if isinstance(value, int) and param.kind not in _FLOATS:
            return int(value).to_bytes(param.size, "little", signed=value < 0)
        if isinstance(value, int | float):
            value = np.array(float(value), np.float64 if param.size == 8 else np.float32)
    except OverflowError:
        raise bad_launch(f"argument {param.name}: {value} does not fit in {param.size} bytes") from None
    if isinstance(value, np.generic | np.ndarray):
        raw: Array = np.asarray(value)
        _check_kind(raw.dtype, param)
        return raw.tobytes()
    raise bad_launch(f"argument {param.name}: cannot pass a {type(value).__name__}")


def _check_kind(dtype: np.dtype[Any], param: Param) -> None:
    """Raises :class:`EmulatorError` for a number whose bits would be taken for a number of another kind."""
    if not dtype.isnative:
        raise bad_launch(f"argument {param.name}: byte order of {dtype.str}, the kernel reads the native one")
    if (param.kind in _FLOATS and dtype.kind in "iub") or (param.kind in _INTEGERS and dtype.kind in "fc"):
        raise bad_launch(f"argument {param.name}: {dtype} given, .{param.kind} expected")
