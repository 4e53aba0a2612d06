"""Exports of a kernel with tensor maps: host code, manifest, torch module; on a GPU their own checks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from evoengine.device.contract import GAPPED, random_inputs
from evoengine.export import ExportRecord
from evoengine.export.cu import export_cu
from evoengine.export.files import export_files
from evoengine.kernel.call_memory import call_params
from evoengine.kernel.tensor_maps import MAP_BYTES, map_geometries
from evoengine.model import DType, Problem
from tests.tma_rows.family import record_of
from tests.tma_rows.stub_driver import HEADER, recorded

SMALL, OTHER = Problem(1, 2, 96, 64), Problem(1, 4, 80, 128, kv_heads=2, seq_kv=130, dtype=DType.BF16, causal=True)

PROGRAM = """
#include <cuda_runtime.h>
#include "{header}"
inline cudaError_t stub_entry(const char* name, void** function, unsigned version, unsigned long long,
                              cudaDriverEntryPointQueryResult* found) {{
    const bool right = std::strcmp(name, "cuTensorMapEncodeTiled") == 0 && version == 12000;
    *function = reinterpret_cast<void*>(stub_encode);
    *found = right ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}}
#define cudaGetDriverEntryPointByVersion stub_entry
#include "best.cu"
#include <cstdio>

// Reads parameter blocks and writes the maps of each, and how many maps were encoded so far.
int main() {{
    const evo_host::Sizes sizes = evo_sizes({sizes});
    AttentionParams params;
    while (std::fread(&params, sizeof params, 1, stdin) == 1) {{
        TensorMaps maps;
        if (evo_host::set_maps(sizes, params, maps) != cudaSuccess) return 1;
        const long long calls = stub_calls(0);
        std::fwrite(&maps, sizeof maps, 1, stdout);
        std::fwrite(&calls, sizeof calls, 1, stdout);
    }}
}}
"""


def grouped(record: ExportRecord) -> ExportRecord:
    """Returns a record whose map of O holds all heads that share a K/V head; its kernel does not fit it."""
    *others, last = record.launch.maps
    return replace(record, launch=replace(record.launch, maps=(*others, replace(last, grouped=True))))


def evaluated(text: str | int, scope: dict[str, int]) -> int:
    return int(eval(str(text), {"__builtins__": {}}, scope))


@pytest.mark.slow
def test_host_code_encodes_the_maps_of_a_call_once(nvcc: str, tmp_path: Path) -> None:
    """The driver is a stub, see ``tests/tma_rows``: the arguments are those that the other launchers encode."""
    record = grouped(record_of(OTHER))
    sizes = ", ".join(map(str, (OTHER.batch, OTHER.heads, OTHER.kv_heads, OTHER.seq_q, OTHER.seq_kv)))
    (tmp_path / "best.cu").write_text(export_cu(record))
    (tmp_path / "use.cu").write_text(PROGRAM.format(header=HEADER, sizes=sizes))
    command = [nvcc, "-arch=sm_90", "-DEVO_NO_MAIN", "-Werror", "all-warnings", "use.cu", "-o", "use"]
    subprocess.run(command, cwd=tmp_path, check=True)
    addresses = {"q": 2**40, "k": 2**41, "v": 2**42, "o": 2**43}
    blocks = [call_params(random_inputs(OTHER, 1, layout), addresses) for layout in (GAPPED, "bshd", GAPPED)]
    blocks.append(call_params(random_inputs(OTHER, 1, GAPPED), addresses | {"o": 2**44}))
    done = subprocess.run(
        [str(tmp_path / "use")], input=b"".join(block.tobytes() for block in blocks), capture_output=True, check=True
    )
    size = 3 * MAP_BYTES
    answers = [done.stdout[at : at + size + 8] for at in range(0, len(done.stdout), size + 8)]
    for block, answer in zip(blocks, answers, strict=True):
        assert recorded(answer[:size]) == list(map_geometries(record.launch.maps, OTHER, block))
    assert [int.from_bytes(answer[size:], "little") for answer in answers] == [3, 6, 6, 7]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_header_with_several_kernels_compiles_without_a_warning(nvcc: str, tmp_path: Path) -> None:
    (file,) = export_files("header", [record_of(SMALL), record_of(OTHER)], "kit.h", None)
    (tmp_path / "kit.h").write_text(str(file.content))
    (tmp_path / "use.cu").write_text('#include "kit.h"\nauto use = &evo_kit::attention;\nint main() {}\n')
    command = [nvcc, "-arch=sm_90", "-Werror", "all-warnings", "use.cu", "-o", "use"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("with_group", [False, True])
def test_the_manifest_describes_the_second_argument(with_group: bool) -> None:
    record = grouped(record_of(OTHER)) if with_group else record_of(OTHER)
    files = {file.name: file.content for file in export_files("cubin", [record], "best.cubin", None)}
    found = json.loads(files["best.json"])["tensor_maps"]
    assert found["bytes"] == 3 * MAP_BYTES
    assert found["data_type"] == "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"
    params = call_params(random_inputs(OTHER, 1, GAPPED), dict.fromkeys("qkvo", 16))
    scope = {name: int(params[name]) for name in params.dtype.names or () if name.endswith("_stride")}
    scope |= {name: getattr(OTHER, name) for name in ("rows_q", "rows_kv", "heads", "kv_heads", "memory_batch")}
    for item, geometry in zip(found["maps"], map_geometries(record.launch.maps, OTHER, params), strict=True):
        assert tuple(evaluated(size, scope) for size in item["sizes"]) == geometry.sizes
        steps = [evaluated(text, scope) for text in item["strides_bytes"]]
        used = np.array(geometry.sizes[1:]) > 1
        assert (np.array(steps)[used] == np.array(geometry.strides_bytes)[used]).all()
        assert tuple(evaluated(size, scope) for size in item["box"]) == geometry.box
        assert item["element_strides"] == [1] * len(geometry.sizes)
        span = f"{geometry.swizzle_bytes}B" if geometry.swizzle_bytes else "NONE"
        assert item["swizzle"] == f"CU_TENSOR_MAP_SWIZZLE_{span}"


def imported(folder: Path, make: Callable[[ExportRecord], ExportRecord] = lambda record: record) -> ModuleType:
    (file,) = export_files("torch", [record_of(SMALL), make(record_of(OTHER))], "best.py", None)
    (folder / "best.py").write_text(str(file.content))
    spec = importlib.util.spec_from_file_location("exported_with_maps", folder / "best.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_torch_module_declares_the_maps(tmp_path: Path) -> None:
    module = imported(tmp_path, grouped)
    for kernel, record in zip(module.KERNELS, (record_of(SMALL), grouped(record_of(OTHER))), strict=True):
        specs = record.launch.maps
        assert [astuple(box) for box in kernel.plan(kernel.call).maps] == [astuple(one) for one in specs]
    done = subprocess.run([sys.executable, "best.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("problem", [SMALL, OTHER], ids=lambda problem: problem.key)
def test_programs_pass_their_own_check(nvcc: str, tmp_path: Path, problem: Problem) -> None:
    (tmp_path / "best.cu").write_text(export_cu(record_of(problem)))
    subprocess.run([nvcc, "-arch=native", "best.cu", "-o", "best"], cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "best")], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nPASS " in done.stdout


@pytest.mark.gpu
def test_a_torch_module_runs_its_kernels(tmp_path: Path) -> None:
    import torch

    module = imported(tmp_path)
    assert module.EmbeddedKernels(module.KERNELS).check() == 0
    for strided in (False, True):
        shape = (3, 70, 2, 64) if strided else (3, 2, 70, 64)
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
        q, k, v = (one.transpose(1, 2) if strided else one for one in (q, k, v))
        o = module.attention(q, k, v, fallback=False)
        want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
        torch.testing.assert_close(o.float(), want, rtol=8e-3, atol=2e-3)
