"""Tensor maps in the torch launcher: geometries, the second argument, and how often maps are encoded."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evoengine.api.calls import plan_of, problem_of
from evoengine.emulator.memory.tensor_map import MAP_BYTES, TensorMap
from evoengine.kernel.abi import BufferAddresses, Placement, pack_params
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.kernel.tensor_maps import TensorMapGeometry, map_geometries
from evoengine.model import DType, Problem
from evoengine.parity.mutants.hopper import BASE
from evoengine.runtime.call import Call, Options, read_call, strides_of
from evoengine.runtime.dispatch import Dispatcher
from evoengine.runtime.driver import LaunchConfig
from evoengine.runtime.first_use_check import check_kernel
from evoengine.runtime.launcher import KernelPlan, make_launcher
from evoengine.runtime.map_encoding import MapAxes, MapBlock, MapGeometry, map_encoder
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.api.emulated import EmulatedDriver
from tests.api.test_launcher import assert_right, draw
from tests.tma_rows.family import kernel_of
from tests.tma_rows.stub_driver import HEADER, recorded

MAPS = 3
"""Maps of the family: V, K and O."""


class Recorder(EmulatedDriver):
    """Records the second argument of each launch instead of running it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[list[TensorMap]] = []

    def function(self, device: int, code: bytes, entry: str, smem_bytes: int) -> int:
        return 0

    def launch_of(self, config: LaunchConfig, function: int, params: ctypes.Array[Any]) -> Callable[[], int]:
        size = MAPS * MAP_BYTES

        def launch() -> int:
            data = ctypes.string_at(int(params[1]), size)
            self.seconds.append([TensorMap.decode(data[at : at + MAP_BYTES]) for at in range(0, size, MAP_BYTES)])
            return 0

        return launch


def plan_for(call: Call) -> KernelPlan:
    problem = problem_of(call)
    kernel = kernel_of(replace(problem, batch=1, heads=1, kv_heads=1, seq_q=96, seq_kv=96))
    return replace(plan_of(kernel, call), code=kernel.binary.ptx.encode())


def contiguous() -> tuple[torch.Tensor, ...]:
    return draw(2, 4, 40, 64), draw(2, 2, 50, 64, seed=1), draw(2, 2, 50, 64, seed=2)


CALLS: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "contiguous": contiguous,
    "rows outside heads": lambda: tuple(draw(2, n, 2, 64, seed=n).transpose(1, 2) for n in (40, 50, 50)),
    "slices of one tensor": lambda: draw(2, 48, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind(0),
    "heads shared by a stride of 0": lambda: (
        draw(2, 2, 40, 64),
        *(draw(2, 1, 50, 64, seed=n).expand(2, 2, 50, 64) for n in (1, 2)),
    ),
    "arbitrary strides of single entries": lambda: tuple(
        draw(1, 1, n, 64).as_strided((1, 1, n, 64), (3, 5, 64, 1)) for n in (40, 50, 50)
    ),
    "one row": lambda: tuple(draw(3, 2, 1, 64).as_strided((3, 2, 1, 64), (128, 64, 7, 1)) for _ in range(3)),
}


def geometry_of(found: TensorMap) -> TensorMapGeometry:
    parts: tuple[Any, ...] = (found.sizes, found.strides_bytes, found.box)
    return TensorMapGeometry(found.address, parts[0], parts[1], parts[2], DType.FP16, found.swizzle_bytes)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_maps_of_a_call_are_those_of_devices(name: str, grouped: bool) -> None:
    """The map of O holds one head, or all heads that share a K/V head."""
    q, k, v = CALLS[name]()
    driver, call = Recorder(), read_call(q, k, v, None, None, None, Options())
    plan = plan_for(call)
    plan = replace(plan, maps=(*plan.maps[:2], replace(plan.maps[2], grouped=grouped)))
    o = make_launcher(driver, plan, call, q, k, v, "bhsd")(q, k, v)
    assert isinstance(o, torch.Tensor)
    at = dict(zip("qkvo", (q, k, v, o), strict=True))
    places = {name: Placement(one.data_ptr(), strides_of(one, call, "bhsd")) for name, one in at.items()}
    params = pack_params(problem_of(call), BufferAddresses(places["q"], places["k"], places["v"], places["o"]))
    *specs, last = kernel_of(Problem(1, 1, 96, 64)).source.launch.maps
    specs.append(replace(last, grouped=grouped))
    (second,) = driver.seconds
    assert [geometry_of(found) for found in second] == list(map_geometries(tuple(specs), problem_of(call), params))


def test_repeated_calls_encode_nothing() -> None:
    q, k, v = contiguous()
    driver, call = Recorder(), read_call(q, k, v, None, None, None, Options())
    plan, outputs = plan_for(call), []
    launcher = make_launcher(driver, plan, call, q, k, v, "bhsd")
    for _ in range(3):
        outputs = [launcher(q, k, v)]  # the allocator may reuse the memory of the last output
    addresses = {second[2].address for second in driver.seconds}
    assert len(driver.encoded) == 3 * len(addresses)
    assert {second[1].address for second in driver.seconds} == {k.data_ptr()}
    other = k.clone()
    outputs.append(launcher(q, other, v))
    assert driver.seconds[-1][1].address == other.data_ptr()
    assert driver.seconds[-1][0].address == v.data_ptr()


def test_dropped_maps_are_encoded_again() -> None:
    q, k, v = contiguous()
    driver, call = Recorder(), read_call(q, k, v, None, None, None, Options())
    launcher = make_launcher(driver, plan_for(call), call, q, k, v, "bhsd")
    held = [launcher(q, k, v) for _ in range(300)]
    last = [second[2].address for second in driver.seconds]
    assert last == [o.data_ptr() for o in held if isinstance(o, torch.Tensor)]
    assert len(driver.encoded) == 3 * 300


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.every(2)
def test_kernels_with_maps_compute_attention(name: str) -> None:
    """Launcher and kernel together, on the emulator."""
    q, k, v = CALLS[name]()
    driver, call = EmulatedDriver(), read_call(q, k, v, None, None, None, Options())
    launcher = make_launcher(driver, plan_for(call), call, q, k, v, "bhsd")
    for tensors in ((q, k, v), CALLS[name]()):  # equal shapes and strides at other addresses
        o = launcher(*tensors)
        assert isinstance(o, torch.Tensor)
        assert_right(o, Options(), *tensors)


def test_a_kernel_with_grouped_heads_computes_attention() -> None:
    """Maps with five axes and partial results in the workspace: family hopper, for a few queries."""
    q, k, v = draw(2, 6, 3, 64), draw(2, 2, 150, 64, seed=1), draw(2, 2, 150, 64, seed=2)
    call = read_call(q, k, v, None, None, None, Options())
    space, target = find_space("hopper"), get_target("h200").compiled_for("sm_90a")
    config = space.config({**BASE, "PACK_GQA": True, "SPLIT_WAVES": 1})
    source = TemplateLibrary(data_dir("templates")).load("hopper").render(config, problem_of(call), space, target)
    binary = Compiler(default_cache_dir()).compile(source, target.arch)
    plan = replace(plan_of(Kernel(source, binary), call), code=binary.ptx.encode())
    driver = EmulatedDriver(binary.resources.registers, workspace=plan.workspace_bytes, counters=4 * plan.counters)
    o = make_launcher(driver, plan, call, q, k, v, "bhsd")(q, k, v)
    assert isinstance(o, torch.Tensor)
    assert_right(o, Options(), q, k, v)
    assert {len(one.sizes) for one in driver.encoded} == {4, 5}


def test_a_kernel_whose_maps_are_rejected_is_not_used() -> None:
    """The check before the first use returns the reason, which ``explain`` shows, and another kernel is selected."""
    q, k, v = contiguous()
    call, driver = read_call(q, k, v, None, None, None, Options()), Recorder()
    driver.map_encoder = lambda geometry: lambda _place, _address: 1  # type: ignore[method-assign]
    driver.explain = lambda status: f"status {status}"  # type: ignore[method-assign]
    assert check_kernel(plan_for, call, -1, driver).startswith("no tensor map of V ")


def test_arguments_of_the_driver_match_cuda_h(nvcc: str, tmp_path: Path) -> None:
    """The encoder, called through ctypes with arguments that are all different."""
    use = 'extern "C" decltype(stub_encode)* encoder = stub_encode;'
    (tmp_path / "stub.cpp").write_text(f'#include "{HEADER}"\n{use}\n')
    library = tmp_path / "stub.so"
    command = [nvcc, "-shared", "-Xcompiler=-fPIC", "-cudart=none", str(tmp_path / "stub.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)

    class Library:
        cuTensorMapEncodeTiled = ctypes.CDLL(str(library)).stub_encode  # noqa: N815 - the driver's name

    for bf16, swizzle in ((False, 0), (True, 32), (True, 64), (False, 128)):
        axes = MapAxes((72, 2**31, 5, 3), (144, 2**39, 2**33 + 16), (64, 176, 1, 1))
        if swizzle == 64:
            axes = MapAxes((72, 6, 2**31, 5, 3), (48, 144, 2**39, 2**33 + 16), (64, 6, 10, 1, 1))
        geometry = MapGeometry(axes.sizes, axes.strides_bytes, axes.box, bf16, swizzle)
        block = MapBlock(2)
        assert map_encoder(Library, geometry)(block.place(1), 2**47 + 48) == 0
        element = DType.BF16 if bf16 else DType.FP16
        want = TensorMapGeometry(2**47 + 48, geometry.sizes, geometry.strides_bytes, geometry.box, element, swizzle)
        assert recorded(block.read()[MAP_BYTES:]) == [want]


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_kernels_with_maps_compute_attention_on_a_gpu(name: str) -> None:
    tensors = [tensor.cuda() for tensor in CALLS[name]()]
    with torch.no_grad():
        found = attention_on_a_gpu()(*tensors, fallback=False)
    assert_right(found.cpu(), Options(), *(tensor.cpu() for tensor in tensors))


@pytest.mark.gpu
def test_a_captured_graph_keeps_its_maps() -> None:
    """Maps are arguments by value: later calls with other tensors do not change the graph."""
    attention, (q, k, v) = attention_on_a_gpu(), (tensor.cuda() for tensor in contiguous())
    attention(q, k, v, fallback=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attention(q, k, v, fallback=False)
    for number in range(3):
        attention(*(torch.randn_like(tensor) for tensor in (q, k, v)), fallback=False)
        k.copy_(draw(*k.shape, seed=10 + number))
        graph.replay()
        assert_right(o.cpu(), Options(), q.cpu(), k.cpu(), v.cpu())


def attention_on_a_gpu() -> Callable[..., torch.Tensor]:
    """Returns ``attention`` whose kernels have tensor maps, and which shares nothing with other callers."""

    def resolve(call: Call, *_: object) -> KernelPlan:
        return plan_of(kernel_of(replace(problem_of(call), batch=1, heads=1, kv_heads=1)), call)

    attention: Callable[..., torch.Tensor] = Dispatcher("evotestmaps", resolve).attention
    return attention
