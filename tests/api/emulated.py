"""Driver that reads a launcher's structures like the CUDA driver and runs the PTX on the emulator.

It tests launchers, strides and parameter blocks with real kernels on CPU tensors, without a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evoengine.api.calls import plan_of, problem_of, unsupported
from evoengine.emulator.emulator import Emulator
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.tensor_map import MAP_BYTES, TensorMap
from evoengine.emulator.ptx.parser import parse
from evoengine.errors import NothingFoundError
from evoengine.kernel.abi import PARAMS_DTYPE
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.parity.mutants.mutant import MutantEdit, mutate
from evoengine.runtime.call import Call
from evoengine.runtime.dispatch import Dispatcher
from evoengine.runtime.driver import Driver, LaunchConfig
from evoengine.runtime.launcher import KernelPlan
from evoengine.runtime.map_encoding import MapGeometry
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.api.boards import mma

STREAM = 77


class EmulatedDriver(Driver):
    """Implements :class:`Driver` for tensors in host memory.

    Args:
        registers: Registers per thread at launch, for kernels that move them; None for what the PTX allows.
        sizes: Bytes of the buffers whose sizes are no parameters: ``workspace`` and ``counters``.
    """

    def __init__(self, registers: int | None = None, **sizes: int) -> None:
        self.sizes = sizes
        self._registers = registers
        self.head_dim = 64
        """Head dimension of the kernels that are loaded next."""
        self._loaded: list[tuple[Emulator, list[int], int, dict[str, int]]] = []
        """Kernels: sizes of the arguments after the parameter block, head dim, sizes of other buffers."""
        self.launched: list[tuple[str, int]] = []
        self.encoded: list[TensorMap] = []
        self.stream_of = lambda _device: STREAM

    def function(self, device: int, code: bytes, entry: str, smem_bytes: int) -> int:
        emulator = Emulator(code.decode(), entry=entry, registers=self._registers)
        more = [one.size for one in parse(code.decode(), entry).params[1:]]
        self._loaded.append((emulator, more, self.head_dim, self.sizes))
        return len(self._loaded) - 1

    @property
    def devices(self) -> int:
        return 1

    def on(self, device: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def capturing(self) -> bool:
        return False

    def launch_of(self, config: LaunchConfig, function: int, params: ctypes.Array[Any]) -> Callable[[], int]:
        return lambda: self.run(config, function, *map(int, params))

    def map_encoder(self, geometry: MapGeometry) -> Callable[[int, int], int]:
        def encode(place: int, address: int) -> int:
            sizes, strides, box = geometry.sizes, geometry.strides_bytes, geometry.box
            self.encoded.append(TensorMap(address, sizes, strides, box, 2, geometry.swizzle_bytes))
            ctypes.memmove(place, self.encoded[-1].encode(), MAP_BYTES)
            return 0

        return encode

    def run(self, config: LaunchConfig, function: int, block: int, maps: int = 0) -> int:
        params = np.frombuffer(ctypes.string_at(block, PARAMS_DTYPE.itemsize), PARAMS_DTYPE)[0].copy()
        (emulator, more, head_dim, sizes), memory = self._loaded[function], GlobalMemory()
        self.launched.append((emulator.entry, config.stream))
        places, moved = {}, {}
        for name, size in self._spans(params, head_dim, sizes):
            address = int(params[name])
            host = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
            assert address % 4 == 0
            buffer = memory.alloc(host, name=name)
            params[name] = moved[address] = buffer.address
            places[name] = host, buffer
        grid = config.grid_x, config.grid_y, config.grid_z
        args = (params, *(_moved_maps(ctypes.string_at(maps, size), moved) for size in more))
        emulator.launch(grid, config.block_x, args, memory=memory, smem_bytes=config.smem_bytes, deadline_s=300.0)
        for host, buffer in places.values():
            host[:] = memory.read(buffer, np.uint8)
        return 0

    @staticmethod
    def _spans(params: Any, dim: int, sizes: dict[str, int]) -> list[tuple[str, int]]:
        """Returns, for each buffer of a call, the bytes from its first to its last element."""
        batch, heads = int(params["batch"]), int(params["heads"])
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
        return found + [(name, size) for name, size in sizes.items() if params[name]]


class Emulated:
    """Dispatcher whose kernels run on the emulator.

    Args:
        cache: Folder of compiled kernels.
        edits: Changes of the kernel's source.
        overrides: Tunables that differ from those of :func:`tests.api.boards.mma`.
    """

    count = 0

    def __init__(self, cache: Path, edits: tuple[MutantEdit, ...] = (), **overrides: Any) -> None:
        self._compiler, self._edits, self._overrides = Compiler(cache), edits, overrides
        self.driver = EmulatedDriver()
        self.resolved: list[Call] = []
        Emulated.count += 1
        self.dispatcher = Dispatcher(f"evotest{Emulated.count}", self.resolve, lambda: self.driver)
        self.attention = self.dispatcher.attention

    def resolve(self, call: Call, device: int, required: bool, leaderboard: str, *_strides: object) -> KernelPlan:
        self.resolved.append(call)
        reason = unsupported(call)
        if reason:
            raise NothingFoundError(reason)
        space = find_space("mma")
        template = TemplateLibrary(data_dir("templates")).load("mma")
        source = mutate(template.render(mma(self._overrides), problem_of(call), space, get_target("l4")), self._edits)
        kernel = Kernel(source, self._compiler.compile(source, "sm_89"))
        plan = plan_of(kernel, call)
        self.driver.head_dim = call.head_dim
        self.driver.sizes = {"workspace": plan.workspace_bytes, "counters": 4 * plan.counters}
        return KernelPlan(kernel.binary.ptx.encode(), plan.launches, plan.workspace_bytes, plan.counters)


def _moved_maps(data: bytes, moved: dict[int, int]) -> bytes:
    """Returns the maps of a second argument with other addresses."""
    maps = (TensorMap.decode(data[at : at + MAP_BYTES]) for at in range(0, len(data), MAP_BYTES))
    return b"".join(replace(one, address=moved[one.address]).encode() for one in maps)
