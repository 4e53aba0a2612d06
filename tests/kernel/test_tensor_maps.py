"""Tensor maps: tables of ``template.toml``, the second kernel argument, geometries of calls, and the cache of maps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.device.contract import GAPPED, random_inputs
from evoengine.errors import CompileError, LaunchError, RenderError, TemplateError
from evoengine.kernel.abi import PARAM_BYTES
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.call_memory import call_params
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.memory_layout import AxisOrder, CallLayout
from evoengine.kernel.resources import performance_loss
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.kernel.tensor_maps import (
    MAP_BYTES,
    MOST_KEPT,
    MapArgumentCache,
    MapSpec,
    TensorMapGeometry,
    encode_maps,
    map_geometries,
)
from evoengine.model import DType, Problem
from tests.kernel.families import KERNEL, META, PROBLEM, render, write_family
from tests.tma_rows.family import kernel_of, source_of

MAP = '[[maps]]\ntensor = "k"\nbox_rows = "ROWS"\n'
HOPPER = META.replace("min_arch = 80", "min_arch = 90")
OF = {tensor: MapSpec(tensor, 32, 64, 128) for tensor in ("q", "k", "v", "o")}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (MAP.replace('"k"', '"lse"'), r"maps\[0\].tensor: .*'lse'"),
        (MAP.replace("tensor", "tensors"), r"maps\[0\].*tensor"),
        (MAP.replace('box_rows = "ROWS"\n', ""), r"maps\[0\].*box_rows"),
        (MAP.replace('"ROWS"', "64"), r"maps\[0\].box_rows: "),
        (MAP.replace('"ROWS"', '"ROWS +"'), r"maps\[0\].box_rows: not an expression"),
        (MAP.replace('"ROWS"', '"min(ROWS, seq_q)"'), r"maps\[0\].box_rows: must not use seq_q"),
        (MAP + 'box_columns = "batch"\n', r"maps\[0\].box_columns: must not use batch"),
        (MAP + "swizzle = 96\n", r"maps\[0\].swizzle: .*96"),
        (MAP + 'grouped = "1"\n', r"maps\[0\].grouped: only Q and O have grouped heads, not k"),
        (MAP.replace('"k"', '"q"') + 'grouped = "heads > kv_heads"\n', r"maps\[0\].grouped: must not use heads"),
        (MAP + MAP, "maps: names a tensor twice"),
    ],
)
def test_mistakes_in_a_maps_table(tmp_path: Path, table: str, message: str) -> None:
    write_family(tmp_path, meta=HOPPER + table)
    with pytest.raises(TemplateError, match=message) as caught:
        TemplateLibrary(tmp_path / "templates").load("copy")
    assert caught.value.file.endswith("template.toml")


def test_maps_need_an_architecture_that_has_them(tmp_path: Path) -> None:
    write_family(tmp_path, meta=META + MAP)
    with pytest.raises(TemplateError, match=r"template.toml: maps: .*min_arch.*90.*80"):
        TemplateLibrary(tmp_path / "templates").load("copy")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (MAP.replace('"ROWS"', '"5 * ROWS"'), r"maps\[0\].box_rows: is 320, a box has 1 to 256 rows"),
        (MAP.replace('"ROWS"', '"ROWS - 64"'), r"maps\[0\].box_rows: is 0, "),
        (MAP + 'box_columns = "12"\n', r"maps\[0\].box_columns: is 12, a row of 24 bytes, not a multiple of 16"),
        (MAP + 'box_columns = "128"\n', r"maps\[0\].box_columns: .*256 bytes; with a swizzle of 128 bytes at most 128"),
        (MAP + 'box_columns = "264"\nswizzle = 0\n', r"maps\[0\].box_columns: .*with no swizzle at most 512"),
        (MAP + 'box_columns = "TILES"\n', r"maps\[0\].box_columns: unknown name TILES"),
    ],
)
def test_boxes_that_no_copy_can_move(tmp_path: Path, table: str, message: str) -> None:
    write_family(tmp_path, meta=HOPPER + table)
    with pytest.raises(RenderError, match=rf"^template\.toml: {message}"):
        render(tmp_path)


def test_the_source_has_exactly_the_declared_maps() -> None:
    source = source_of(Problem(1, 2, 96, 64), keys=32, rows=64)
    assert source.launch.maps == (MapSpec("v", 32, 64, 0), MapSpec("k", 32, 64, 128), MapSpec("o", 64, 32, 0))
    members = re.search(r"struct TensorMaps \{\n(.*?)\};", source.text, re.DOTALL)
    assert members is not None
    assert re.findall(r"^    TensorMap (\w+);", members[1], re.MULTILINE) == ["v", "k", "o"]
    facts = dict(re.findall(r"static constexpr int (\w_(?:BOX|SWIZZLE)_\w+) = (\d+);", source.text))
    assert facts == {
        "V_BOX_ROWS": "32",
        "V_BOX_COLUMNS": "64",
        "V_SWIZZLE_BYTES": "0",
        "K_BOX_ROWS": "32",
        "K_BOX_COLUMNS": "64",
        "K_SWIZZLE_BYTES": "128",
        "O_BOX_ROWS": "64",
        "O_BOX_COLUMNS": "32",
        "O_SWIZZLE_BYTES": "0",
    }


@pytest.mark.parametrize("problem", [Problem(1, 2, 96, 64), Problem(1, 2, 96, 128, dtype=DType.BF16, causal=True)])
def test_the_maps_are_the_second_argument(problem: Problem) -> None:
    ptx = kernel_of(problem).binary.ptx
    assert f".param .align 8 .b8 evo_attention_param_0[{PARAM_BYTES}]," in ptx
    assert f".param .align 128 .b8 evo_attention_param_1[{3 * MAP_BYTES}]\n" in ptx
    assert "cp.async.bulk.tensor.4d" in ptx


def test_maps_and_arguments_must_agree(tmp_path: Path) -> None:
    write_family(tmp_path, meta=HOPPER + MAP)
    with pytest.raises(CompileError, match=r"\b0 bytes .*\b128 bytes"):
        Compiler(None).compile(render(tmp_path), "sm_90")
    second = KERNEL.replace("AttentionParams p)", "AttentionParams p, const int more)")
    write_family(tmp_path, kernel=second, meta=HOPPER)
    with pytest.raises(CompileError, match="after AttentionParams"):
        Compiler(None).compile(render(tmp_path), "sm_90")


def test_boxes_change_the_code_hash() -> None:
    source = source_of(Problem(1, 2, 96, 64))
    first, *others = source.launch.maps
    changed = [
        replace(source, launch=replace(source.launch, maps=(replace(first, **change), *others)))
        for change in ({}, {"box_rows": 8}, {"grouped": True})
    ]
    assert len({Compiler(None).compile(one, "sm_90").code_hash for one in changed}) == 3


# -- geometry ----------------------------------------------------------------------------------------------------------


PACKED = replace(PROBLEM, batch=3, lengths_q=(7, 37, 30), lengths_kv=(45, 0, 12), seq_q=37, seq_kv=45)


def points(shape: tuple[int, ...], seed: int) -> Iterator[tuple[int, ...]]:
    """First and last indices of a tensor, and some between."""
    rng = np.random.default_rng(seed)
    yield (0,) * len(shape)
    yield tuple(size - 1 for size in shape)
    for _ in range(20):
        yield tuple(int(rng.integers(size)) for size in shape)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", GAPPED])
@pytest.mark.parametrize(
    "problem",
    [Problem(2, 4, 37, 64, kv_heads=2, seq_kv=45), Problem(1, 1, 1, 72, dtype=DType.BF16), Problem(3, 2, 1, 8), PACKED],
    ids=lambda problem: problem.key,
)
def test_geometries_address_every_element(problem: Problem, layout: AxisOrder | CallLayout) -> None:
    """An element's address by the map is its address in NumPy's view."""
    inputs = random_inputs(problem, 1, layout)
    output = np.zeros(inputs.layout.o.elements(inputs.output_shape), np.uint16)
    views = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "o": inputs.logical_output(output)}
    bases = {name: view.ctypes.data & ~15 for name, view in views.items()}  # NumPy aligns only to 8 bytes at times
    found = map_geometries((OF["k"], OF["o"], OF["q"], OF["v"]), problem, call_params(inputs, bases))
    for name, geometry in zip("koqv", found, strict=True):
        view = views[name]
        assert geometry.sizes == view.shape[::-1][:1] + view.shape[2::-1]
        assert (geometry.box, geometry.element, geometry.swizzle_bytes) == ((64, 32, 1, 1), problem.dtype, 128)
        assert all(16 <= stride < 2**40 and stride % 16 == 0 for stride in geometry.strides_bytes)
        for batch, head, row, column in points(view.shape, 2):
            offset = np.dot((row, head, batch), geometry.strides_bytes) + 2 * column
            assert geometry.address + offset == view[batch, head, row, column:].ctypes.data - view.ctypes.data % 16


@pytest.mark.parametrize("layout", ["bhsd", "bshd", GAPPED])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(2, 6, 37, 64, kv_heads=2, seq_kv=45),
        Problem(2, 4, 9, 64, kv_heads=1),
        Problem(1, 2, 5, 64),
        replace(PACKED, heads=8, kv_heads=2),
    ],
    ids=lambda problem: problem.key,
)
def test_geometries_of_grouped_heads_address_every_element(problem: Problem, layout: AxisOrder | CallLayout) -> None:
    """The heads that share a K/V head are an axis of their own, and lie side by side in a box."""
    inputs = random_inputs(problem, 1, layout)
    output = np.zeros(inputs.layout.o.elements(inputs.output_shape), np.uint16)
    views = {"q": inputs.q, "o": inputs.logical_output(output)}
    bases = {name: view.ctypes.data & ~15 for name, view in views.items()} | {"k": 16, "v": 16}
    specs = tuple(replace(OF[name], grouped=True) for name in views)
    group = problem.heads // problem.kv_heads
    for (name, view), found in zip(
        views.items(), map_geometries(specs, problem, call_params(inputs, bases)), strict=True
    ):
        batch, heads, rows, columns = view.shape
        assert found.sizes == (columns, group, rows, heads // group, batch), name
        assert found.box == (64, group, 32 // group, 1, 1)
        assert all(16 <= stride < 2**40 and stride % 16 == 0 for stride in found.strides_bytes)
        for entry, head, row, column in points(view.shape, 2):
            offset = np.dot((head % group, row, head // group, entry), found.strides_bytes) + 2 * column
            assert found.address + offset == view[entry, head, row, column:].ctypes.data - view.ctypes.data % 16


def test_a_group_must_fit_a_box() -> None:
    problem = Problem(1, 66, 5, 64, kv_heads=2)
    params = call_params(random_inputs(problem, 1), {"q": 16, "k": 16, "v": 16, "o": 16})
    assert map_geometries((OF["q"],), problem, params)
    with pytest.raises(LaunchError, match=r"tensor map of Q: .*32 rows .*33 heads"):
        map_geometries((replace(OF["q"], grouped=True),), problem, params)


def test_a_misaligned_tensor_has_no_map() -> None:
    problem = Problem(2, 2, 5, 64)
    inputs = random_inputs(problem, 1)
    params = call_params(inputs, {"q": 16, "k": 24, "v": 16, "o": 16})
    assert len(map_geometries((OF["q"], OF["v"], OF["o"]), problem, params)) == 3
    with pytest.raises(LaunchError, match="no tensor map of K: address 0x18 "):
        map_geometries((OF["q"], OF["k"]), problem, params)
    params["q_row_stride"] = 68
    with pytest.raises(LaunchError, match=r"no tensor map of Q: .* 136, "):
        map_geometries((OF["q"],), problem, params)
    params["v_head_stride"] = 2**39
    with pytest.raises(LaunchError, match="no tensor map of V: "):
        map_geometries((OF["v"],), problem, params)


class Encoder:
    """Encodes a map as its address and counts the maps."""

    def __init__(self) -> None:
        self.encoded = 0

    def __call__(self, geometry: TensorMapGeometry) -> bytes:
        self.encoded += 1
        return geometry.address.to_bytes(8, "little") * (MAP_BYTES // 8)


def params_of(inputs: AttentionInputs, k: int = 1024) -> np.ndarray:
    return call_params(inputs, {"q": 16, "k": k, "v": 32, "o": 48})


def test_maps_are_packed_in_the_declared_order() -> None:
    inputs = random_inputs(PROBLEM, 1)
    argument = encode_maps((OF["o"], OF["k"]), PROBLEM, params_of(inputs), Encoder())
    assert argument.shape == ()
    numbers = np.frombuffer(argument.tobytes(), np.uint64)
    assert numbers.tolist() == [48] * 16 + [1024] * 16


def test_equal_calls_encode_their_maps_once() -> None:
    inputs, encoder = random_inputs(PROBLEM, 1), Encoder()
    arguments = MapArgumentCache((OF["o"], OF["k"]), PROBLEM, encoder)
    first = arguments.of(params_of(inputs))
    assert arguments.of(params_of(inputs)) is first
    assert encoder.encoded == 2
    other = arguments.of(params_of(inputs, k=4096))
    assert other.tobytes() != first.tobytes()
    assert arguments.of(params_of(inputs)) is first
    for number in range(MOST_KEPT):
        arguments.of(params_of(inputs, k=8192 + 16 * number))
    assert arguments.of(params_of(inputs)) is not first, "the oldest were dropped"


# -- ptxas' messages ---------------------------------------------------------------------------------------------------

MMA = """
#define WARP "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void __launch_bounds__(128) evo_attention(const __grid_constant__ AttentionParams p) {
    float d[4] = {};
    SETMAXNREG
    for (int i = 0; i < p.seq_kv; ++i) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile(WARP : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(64ull), "l"(128ull));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (i == p.batch) CALLED;
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    static_cast<float*>(p.o)[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


@pytest.mark.parametrize(
    ("setmaxnreg", "called", "message"),
    [
        ("", "return", None),
        ("", 'printf("x")', r"^ptxas C7510: wgmma\.mma_async instructions are serialized .* function call"),
        ('asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");', "break", r"^ptxas C7508: 'setmaxnreg' ignored"),
    ],
)
def test_losses_of_performance_are_found_in_the_log(
    tmp_path: Path, setmaxnreg: str, called: str, message: str | None
) -> None:
    head = '//% include "prologue.cuh.jinja"\n//% include "params.cuh"\n'
    body = MMA.replace("SETMAXNREG", setmaxnreg).replace("CALLED", called)
    write_family(tmp_path, kernel=head + body, meta=HOPPER)
    found = performance_loss(Compiler(None).compile(render(tmp_path), "sm_90a"))
    assert found is None if message is None else re.search(message, str(found))
