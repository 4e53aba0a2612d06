"""Driver that reads a launcher's structures like the CUDA driver and runs the PTX on the emulator.

It tests launchers, strides and parameter blocks with real kernels on CPU tensors, without a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from evoengine.emulator.emulator import Emulator
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.tensor_map import MAP_BYTES, TensorMap
from evoengine.kernel.abi import PARAMS_DTYPE
from evoengine.runtime.driver import Driver, LaunchConfig
from evoengine.runtime.map_encoding import MapGeometry

STREAM = 77


class EmulatedDriver(Driver):
    """Implements :class:`Driver` for tensors in host memory.

    Args:
        registers: Registers per thread at launch, for kernels that move them; None for what the PTX allows.
        sizes: Bytes of the buffers whose sizes are no parameters: ``workspace`` and ``counters``.
    """

    def __init__(self, registers: int | None = None, **sizes: int) -> None:
        self._sizes = sizes
        self._registers = registers
        self._emulators: list[Emulator] = []
        self.launched: list[tuple[str, int]] = []
        self.encoded: list[TensorMap] = []
        self.stream_of = lambda _device: STREAM

    def function(self, device: int, code: bytes, entry: str, smem_bytes: int) -> int:
        self._emulators.append(Emulator(code.decode(), entry=entry, registers=self._registers))
        return len(self._emulators) - 1

    @property
    def devices(self) -> int:
        return 1

    def on(self, device: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def capturing(self) -> bool:
        return False

    def launch_of(self, config: LaunchConfig, function: int, params: ctypes.Array[Any]) -> Callable[[], int]:
        return lambda: self._run(config, function, *map(int, params))

    def map_encoder(self, geometry: MapGeometry) -> Callable[[int, int], int]:
        def encode(place: int, address: int) -> int:
            sizes, strides, box = geometry.sizes, geometry.strides_bytes, geometry.box
            self.encoded.append(TensorMap(address, sizes, strides, box, 2, geometry.swizzle_bytes))
            ctypes.memmove(place, self.encoded[-1].encode(), MAP_BYTES)
            return 0

        return encode

    def _run(self, config: LaunchConfig, function: int, block: int, maps: int = 0) -> int:
        params = np.frombuffer(ctypes.string_at(block, PARAMS_DTYPE.itemsize), PARAMS_DTYPE)[0].copy()
        emulator, memory = self._emulators[function], GlobalMemory()
        self.launched.append((emulator.entry, config.stream))
        places, moved = {}, {}
        for name, size in self._spans(params):
            address = int(params[name])
            host = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
            assert address % 4 == 0
            buffer = memory.alloc(host, name=name)
            params[name] = moved[address] = buffer.address
            places[name] = host, buffer
        grid = config.grid_x, config.grid_y, config.grid_z
        arguments = emulator._program.entry.params
        args = (params, *(_moved_maps(ctypes.string_at(maps, one.size), moved) for one in arguments[1:]))
        emulator.launch(grid, config.block_x, args, memory=memory, smem_bytes=config.smem_bytes, deadline_s=300.0)
        for host, buffer in places.values():
            host[:] = memory.read(buffer, np.uint8)
        return 0

    def _spans(self, params: Any) -> list[tuple[str, int]]:
        """Returns, for each buffer of a call, the bytes from its first to its last element."""
        batch, heads, dim = int(params["batch"]), int(params["heads"]), self._head_dim
        kv_heads = heads // int(params["heads_per_kv_head"])
        rows = {"q": int(params["seq_q"]), "kv": int(params["seq_kv"])}
        found = []
        if params["cu_seqlens_q"]:
            for side in ("q", "kv"):
                starts = (ctypes.c_int32 * (batch + 1)).from_address(int(params[f"cu_seqlens_{side}"]))
                rows[side] = int(starts[batch])
                found.append((f"cu_seqlens_{side}", 4 * (batch + 1)))
        sequences = 1 if params["cu_seqlens_q"] else batch
        for name, count, side in (("q", heads, "q"), ("k", kv_heads, "kv"), ("v", kv_heads, "kv"), ("o", heads, "q")):
            strides = (int(params[f"{name}_{axis}_stride"]) for axis in ("batch", "head", "row"))
            steps = zip((sequences, count, rows[side]), strides, strict=True)
            found.append((name, 2 * (dim + sum((size - 1) * stride for size, stride in steps))))
        if params["lse"]:
            found.append(("lse", 4 * sequences * heads * rows["q"]))
        if params["sink"]:
            found.append(("sink", 4 * heads))
        return found + [(name, size) for name, size in self._sizes.items() if params[name]]

    _head_dim = 64
    """Head dimension of all kernels that it runs."""


def _moved_maps(data: bytes, moved: dict[int, int]) -> bytes:
    """Returns the maps of a second argument with other addresses."""
    maps = (TensorMap.decode(data[at : at + MAP_BYTES]) for at in range(0, len(data), MAP_BYTES))
    return b"".join(replace(one, address=moved[one.address]).encode() for one in maps)
