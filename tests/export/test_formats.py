"""Exports besides the .cu file: torch module, C++ header, machine code with a manifest."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from evoengine.errors import UsageError
from evoengine.export import ExportRecord
from evoengine.export.files import FORMATS, export_files
from evoengine.export.recompile import recompile
from evoengine.kernel.abi import PARAMS_DTYPE, BufferAddresses, Placement, pack_params
from evoengine.kernel.records import Binary
from evoengine.model import Problem
from evoengine.space.language.expression import FUNCTIONS
from evoengine.space.language.rules import problem_scope
from tests.api.emulated import EmulatedDriver
from tests.export.conftest import record_of


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def built(record: ExportRecord, cache: Path) -> Callable[..., tuple[ExportRecord, Binary]]:
    """``built(problem, two_steps=False)``: a row with the code hash of its compiled source."""

    def built(problem: Problem, *, two_steps: bool = False) -> tuple[ExportRecord, Binary]:
        row = record_of(record, problem, two_steps=two_steps)
        evaluation = dataclasses.replace(row.evaluation, code_hash="", source_hash=problem.key)
        binary = recompile(dataclasses.replace(row, evaluation=evaluation), cache)
        evaluation = dataclasses.replace(evaluation, code_hash=binary.code_hash)
        return dataclasses.replace(row, evaluation=evaluation), binary

    return built


def packing(row: ExportRecord) -> ExportRecord:
    """The row with the tunable by which a tile holds rows of all query heads of a K/V head."""
    launch = dataclasses.replace(row.launch, names=(*row.launch.names, ("PACK_GQA", True)))
    return dataclasses.replace(row, launch=launch)


PLAIN = Problem(1, 2, 96, 64)
LONG = Problem(2, 8, 2048, 64)
LSE = Problem(1, 4, 96, 64, kv_heads=2, seq_kv=130, causal=True, lse=True, sink=True, softcap=5.0)


# -- the torch module -------------------------------------------------------------------------------------------------


def written(folder: Path, records: list[ExportRecord], cache: Path, name: str = "best") -> Path:
    (file,) = export_files("torch", records, f"{name}.py", cache)
    path = folder / file.name
    path.write_text(str(file.content))
    return path


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"exported_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def embedded(module: ModuleType) -> Any:
    """The kernels of an exported module."""
    return module.EmbeddedKernels(module.KERNELS)


@pytest.fixture
def module(built: Callable[..., Any], cache: Path, tmp_path: Path) -> ModuleType:
    """Three kernels; two of them differ in sizes only, and the first packs heads."""
    rows = [packing(built(PLAIN)[0]), built(LONG)[0], built(LSE, two_steps=True)[0]]
    return imported(written(tmp_path, rows, cache))


def test_it_needs_nothing_but_torch(module: ModuleType, tmp_path: Path) -> None:
    program = (
        "import sys, runpy\n"
        "for name in ('evoengine', 'cupy', 'numpy', 'cuda', 'jinja2', 'sqlalchemy'):\n"
        "    sys.modules[name] = None\n"
        "runpy.run_path('best.py', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"PASS {p.key}" for p in (PLAIN, LONG, LSE)]
    if not torch.cuda.is_available():
        assert all("GPU" in line for line in lines)


def test_its_names_do_not_clash(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    assert sorted(names) == sorted(set(names))


def test_cpu_calls_use_torch_with_a_warning(module: ModuleType) -> None:
    q, k, v = (torch.randn(1, 2, 40, 64, dtype=torch.float16) for _ in range(3))
    with pytest.warns(RuntimeWarning, match="not on a GPU") as warned:
        o = module.attention(q, k, v)
    assert warned[0].filename == __file__  # the warning names the caller's line
    torch.testing.assert_close(o, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    with pytest.raises(RuntimeError, match="fallback"):
        module.attention(q, k, v, fallback=False)
    with pytest.raises(ValueError, match="does not accept a leaderboard"):
        module.attention(q, k, v, leaderboard="x.db")
    assert "torch's own attention" in module.explain(q, k, v)


@pytest.mark.filterwarnings("ignore:torch computes this call")
def test_calls_with_nothing_to_compute_and_of_several_types(module: ModuleType) -> None:
    q, k = torch.randn(1, 2, 4, 64, dtype=torch.float16), torch.randn(1, 2, 0, 64, dtype=torch.float16)
    o, lse = module.attention(q, k, k, return_lse=True)
    assert torch.equal(o, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((1, 2, 4), float("-inf")))
    for shape in ((1, 0, 4, 64), (0, 2, 4, 64), (1, 2, 0, 64)):
        none = torch.empty(shape, dtype=torch.float16)
        assert module.attention(none, none, none).shape == shape
        call = module.read_call(none, none, none, None, None, None, module.Options())
        assert isinstance(embedded(module).candidates(call, (9, 0)), str), "there is nothing to compute"
    with torch.autocast("cpu", torch.bfloat16):
        mixed = module.attention(q, q.float(), q.float(), scale=torch.tensor(0.5))
        assert mixed.dtype == torch.bfloat16
        assert "torch's own attention" in module.explain(q, q.float(), q.float())


def test_its_op_is_registered_completely(module: ModuleType) -> None:
    tensors = [torch.randn(1, 2, 24, 64) for _ in range(3)]
    options = (None, None, None, True, -1, -1, 0.0, None, 0, 0, "bhsd", True, "")
    dispatcher = module.Dispatcher("evoexportops", embedded(module).resolve)
    ops = getattr(torch.ops, dispatcher.namespace)
    with pytest.warns(RuntimeWarning, match="not on a GPU"):
        torch.library.opcheck(ops.attention.default, (*tensors, *options))


def test_several_kernels_of_one_problem_are_candidates(
    built: Callable[..., Any],
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = built(PLAIN)[0]
    module = imported(written(tmp_path, [row, row, built(LONG)[0]], cache))
    q = torch.empty(1, 2, 96, 64, dtype=torch.float16, device="meta")
    call = module.read_call(q, q, q, None, None, None, module.Options())
    assert [one.name for one in embedded(module).candidates(call, (9, 0))] == [PLAIN.key] * 2
    assert "sm_90" in embedded(module).candidates(call, (8, 9))
    assert "choices.json" in str(module.__doc__), "says where the choice among them is stored"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert embedded(module).check() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"PASS {PLAIN.key}, 2 kernels", f"PASS {LONG.key}"]
    first, second, other = module.KERNELS
    damaged = dataclasses.replace(second, sha256="0" * 64)
    assert module.EmbeddedKernels((first, damaged, other)).check() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"FAIL {PLAIN.key}, kernel 2 of 2", f"PASS {LONG.key}"]


def test_a_call_gets_the_kernel_of_its_traits_and_the_nearest_size(module: ModuleType) -> None:
    def call(*shape: int, dtype: torch.dtype = torch.float16, **options: Any) -> Any:
        q = torch.empty(*shape, dtype=dtype, device="meta")
        sink = torch.empty(shape[1], device="meta") if options.pop("sink", False) else None
        return module.read_call(q, q, q, sink, None, None, module.Options(**options))

    find = embedded(module).find
    for shape, want in (((1, 2, 96, 64), PLAIN), ((1, 2, 200, 64), PLAIN), ((4, 8, 1000, 64), LONG)):
        assert find(call(*shape), (9, 0)).name == want.key
    assert find(call(1, 4, 96, 64, causal=True, lse=True, sink=True, softcap=1.0), (9, 0)).name == LSE.key
    for other in (call(1, 2, 96, 64, causal=True), call(1, 2, 96, 72), call(1, 2, 96, 64, dtype=torch.bfloat16)):
        assert "no embedded kernel computes" in find(other, (9, 0))
    refused = find(call(1, 2, 96, 64), (8, 9))
    assert re.findall(r"sm_\d+", refused) == ["sm_90", "sm_89"]
    assert "sm_100" in find(call(1, 2, 96, 64), (10, 0))
    for rows, want in ((128, PLAIN), (129, LONG)):  # rows · group² is at most 2^31 where heads are packed
        q, k = (torch.empty(1, heads, rows, 64, dtype=torch.float16, device="meta") for heads in (4096, 1))
        large = module.read_call(q, k, k, None, None, None, module.Options())
        kernels = module.EmbeddedKernels(module.KERNELS if want is LONG else module.KERNELS[:1])
        assert kernels.find(large, (9, 0)).name == want.key
    assert "more rows" in module.EmbeddedKernels(module.KERNELS[:1]).find(large, (9, 0))


@pytest.mark.parametrize(("number", "problem"), [(0, PLAIN), (2, LSE)])
def test_its_kernels_compute_attention(
    module: ModuleType, built: Callable[..., Any], number: int, problem: Problem
) -> None:
    """Runs the embedded plan and launcher on the emulator, with PTX instead of the cubin."""
    ptx = built(problem, two_steps=problem is LSE)[1].ptx
    kernel = module.KERNELS[number]
    driver = EmulatedDriver(workspace=1 << 20, counters=1 << 10)

    def resolve(call: Any, *_: object) -> Any:
        plan = kernel.plan(call)
        driver.sizes = {"workspace": plan.workspace_bytes, "counters": 4 * plan.counters}
        return dataclasses.replace(plan, code=ptx.encode())

    attention = module.Dispatcher(f"evoexport{number}", resolve, lambda: driver).attention
    group = problem.heads // problem.kv_heads
    q = torch.randn(2, 2 * group, 33, 64).half()
    k, v = torch.randn(2, 2, 45, 64).half(), torch.randn(2, 2, 45, 64).half()
    sink = torch.randn(2 * group) if problem.sink else None
    said = {"causal": problem.causal, "softcap": problem.softcap, "return_lse": problem.lse}
    got = attention(q, k, v, sink=sink, **said)
    options = module.Options(problem.causal, softcap=problem.softcap, lse=problem.lse)
    want, want_lse = module.torch_attention(options, q.double(), k.double(), v.double(), sink)
    o, lse = got if problem.lse else (got, None)
    torch.testing.assert_close(o.double(), want, rtol=2e-3, atol=2e-3)
    if lse is not None:
        torch.testing.assert_close(lse, want_lse, rtol=1e-4, atol=1e-4)


def test_a_damaged_kernel_is_detected(module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(str(module.__file__)).read_text()
    kernel = module.KERNELS[2]
    for number, wrong in enumerate(((kernel.sha256, "0" * 64), (kernel.packed_code[500:510], "0123456789"))):
        (tmp_path / f"damaged{number}.py").write_text(text.replace(*wrong))
        damaged = imported(tmp_path / f"damaged{number}.py")
        assert embedded(damaged).check() == 1
        *others, last = capsys.readouterr().out.splitlines()
        assert last.startswith(f"FAIL {LSE.key}: the kernel of")
        assert last.endswith("export it again")
        assert all(line.startswith("PASS") for line in others)
        with pytest.raises(RuntimeError, match="export it again"):
            embedded(damaged).kernels[2].plan(kernel.call)


# -- the header -------------------------------------------------------------------------------------------------------

USE = """\
#include "kit.h"
#include <cstdio>
static void ask(evo_kit::Call c) {
    const evo_kit::Kernel* kernel = evo_kit::find(c);
    std::printf("%s %lld %lld\\n", kernel ? kernel->name : "none", evo_kit::workspace_bytes(c), evo_kit::counters(c));
    if (!kernel && evo_kit::attention(c, nullptr) != cudaErrorNotSupported) std::printf("not refused\\n");
}
const evo_kit::Kernel* elsewhere();
int main() {
    evo_kit::Call c;
    c.head_dim = 64, c.batch = 1, c.heads = c.kv_heads = 2, c.seq_q = c.seq_kv = 128;
    ask(c);
    c.seq_q = c.seq_kv = 4096, c.batch = 4;
    ask(c);
    c.causal = true;
    ask(c);
    float lse, sink;
    c.lse = &lse, c.sink = &sink, c.softcap = 2, c.heads = 4, c.seq_q = 10, c.batch = 1;
    ask(c);
    c.is_bf16 = true;
    ask(c);
    std::printf("%d\\n", elsewhere() == nullptr);
    namespace packing = evo_kit::detail::kernel_0;
    for (int rows : {128, 129}) std::printf("%d", packing::evo_complete(packing::evo_sizes(1, 4096, 1, rows, 64), {}));
}
"""
ELSEWHERE = '#include "kit.h"\nconst evo_kit::Kernel* elsewhere() { return evo_kit::find(evo_kit::Call()); }\n'


@pytest.fixture
def header(built: Callable[..., Any], cache: Path, tmp_path: Path) -> Path:
    rows = [packing(built(PLAIN)[0]), built(LONG)[0], built(LSE, two_steps=True)[0]]
    (file,) = export_files("header", rows, "kit.h", cache)
    (tmp_path / file.name).write_text(str(file.content))
    return tmp_path / file.name


@pytest.mark.slow
@pytest.mark.thorough
def test_a_program_of_two_files_chooses_by_shape(nvcc: str, header: Path) -> None:
    folder = header.parent
    (folder / "use.cu").write_text(USE)
    (folder / "elsewhere.cu").write_text(ELSEWHERE)
    files = [str(folder / name) for name in ("use.cu", "elsewhere.cu")]
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", *files, "-o", str(folder / "use")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    said = subprocess.run([str(folder / "use")], capture_output=True, text=True, check=True).stdout.splitlines()
    workspace = 4 * 10 * (64 + 2) * 4
    assert said == [
        f"{PLAIN.key} 0 0",
        f"{LONG.key} 0 0",
        "none 0 0",
        f"{LSE.key} {workspace} 4",
        "none 0 0",
        "1",
        "10",
    ]


@pytest.mark.slow
@pytest.mark.thorough
def test_its_check_compiles_and_needs_a_gpu(nvcc: str, header: Path) -> None:
    command = [nvcc, "-x", "cu", "-arch=sm_90", "-DEVO_ATTENTION_MAIN", str(header), "-o", str(header.with_suffix(""))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run([str(header.with_suffix(""))], capture_output=True, text=True, check=False, env=environment)
    assert (run.returncode, run.stdout, "GPU" in run.stderr) == (3, "", True)


@pytest.mark.gpu
def test_its_check_passes(nvcc: str, built: Callable[..., Any], cache: Path, tmp_path: Path) -> None:
    longer = Problem(2, 8, 200, 64)  # the test kernel is slow and a check calls it 1,400 times
    rows = [built(PLAIN)[0], built(longer)[0], built(LSE, two_steps=True)[0]]
    (file,) = export_files("header", rows, "kit.h", cache)
    header, program = tmp_path / "kit.h", tmp_path / "kit"
    header.write_text(str(file.content))
    command = [
        nvcc,
        "-x",
        "cu",
        "-arch=native",
        "-DEVO_ANY_ARCH",
        "-DEVO_ATTENTION_MAIN",
        str(header),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nPASS ") == 3


# -- machine code with a manifest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_the_manifest_describes_the_launches(built: Callable[..., Any], cache: Path, tmp_path: Path, kind: str) -> None:
    row, binary = built(LSE, two_steps=True)
    files = export_files(kind, [row], f"best.{kind}", cache)
    assert [file.name for file in files] == [f"best.{kind}", "best.json", "best_test.py"]
    for file in files:
        data = file.content if isinstance(file.content, bytes) else file.content.encode()
        (tmp_path / file.name).write_bytes(data)
    assert (tmp_path / files[0].name).read_bytes() == (binary.cubin if kind == "cubin" else binary.ptx.encode())
    facts = json.loads((tmp_path / "best.json").read_text())
    assert [launch["entry"] for launch in facts["launches"]] == ["evo_attention", "evo_combine"]
    assert facts["arch"] == "sm_90"
    assert facts["code_hash"] == binary.code_hash
    for launch, plan in zip(facts["launches"], row.launch.steps(LSE), strict=True):
        scope = problem_scope(LSE) | dict(FUNCTIONS)
        assert tuple(eval(text, {"__builtins__": {}}, scope) for text in launch["grid"]) == plan.grid
        assert (launch["threads"], launch["dynamic_smem_bytes"]) == (plan.threads, plan.smem_bytes)
    layout = np.dtype(
        {
            "names": [field["name"] for field in facts["params"]["fields"]],
            "formats": [
                {"pointer": "u8", "i64": "i8", "i32": "i4", "f32": "f4"}[f["type"]] for f in facts["params"]["fields"]
            ],
            "offsets": [field["offset"] for field in facts["params"]["fields"]],
            "itemsize": facts["params"]["bytes"],
        }
    )
    assert layout == PARAMS_DTYPE
    assert run_check(tmp_path) == (0, True)
    without = run_script(tmp_path, os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert (without.returncode, without.stdout.count("\n")) == (0, 1)
    assert "GPU" in without.stdout


@pytest.mark.parametrize("problem", [PLAIN, LSE], ids=["plain", "softcap"])
def test_the_manifest_defines_the_scales(built: Callable[..., Any], cache: Path, problem: Problem) -> None:
    row = built(problem, two_steps=problem is LSE)[0]
    facts = json.loads(str(export_files("ptx", [packing(row)], "best.ptx", cache)[1].content))
    names = [field["name"] for field in facts["params"]["fields"]]
    assert names[-1] == ("softcap_scale" if problem.softcap else "positive_scale")
    nowhere = BufferAddresses(*(Placement(0, (0, 0, 0)),) * 4)
    for scale in (0.125, -0.3, 0.0, 2.0**127):
        scope: dict[str, Any] = {"softmax_scale": scale, "softcap": problem.softcap, "min": min, "max": max, "abs": abs}
        block = pack_params(problem, nowhere, scale).item()
        for name, text in facts["params"]["computed"].items():
            scope[name] = eval(text, {"__builtins__": {}}, scope)
            assert np.float32(scope[name]) == np.float32(block[names.index(name)])
    for rows, fits in ((128, True), (129, False)):
        scope = {"seq_q": rows, "heads": 4096, "kv_heads": 1}
        assert eval(facts["requires"], {"__builtins__": {}}, scope) is fits


def run_check(folder: Path) -> tuple[int, bool]:
    done = run_script(folder, dict(os.environ))
    return done.returncode, done.stdout.startswith("PASS best.")


def run_script(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "best_test.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("damage", ["file", "hash", "entry", "missing", "link", "offset"])
def test_the_check_detects_a_mismatch(built: Callable[..., Any], cache: Path, tmp_path: Path, damage: str) -> None:
    for file in export_files("cubin", [built(PLAIN)[0]], "best.cubin", cache):
        (tmp_path / file.name).write_bytes(file.content if isinstance(file.content, bytes) else file.content.encode())
    code, manifest = tmp_path / "best.cubin", tmp_path / "best.json"
    match damage:
        case "file":
            code.write_bytes(code.read_bytes() + b"\0")
        case "hash":
            manifest.write_text(manifest.read_text().replace('"sha256": "', '"sha256": "0'))
        case "entry":
            manifest.write_text(manifest.read_text().replace('"entry": "evo_attention"', '"entry": "another"'))
        case "missing":
            code.unlink()
        case _:  # with the hash of the damaged file
            data = bytearray(code.read_bytes())
            (table,) = struct.unpack_from("<Q", data, 0x28)
            size, count = struct.unpack_from("<HH", data, 0x3A)
            kinds = [struct.unpack_from("<I", data, table + 4 + number * size)[0] for number in range(count)]
            header = table + kinds.index(2) * size  # section header of the symbol table
            if damage == "link":
                struct.pack_into("<I", data, header + 40, 99)
            else:
                struct.pack_into("<Q", data, header + 24, 2**64 - 1)
            old, new = (hashlib.sha256(some).hexdigest() for some in (code.read_bytes(), data))
            code.write_bytes(data)
            manifest.write_text(manifest.read_text().replace(old, new))
    done = run_script(tmp_path, dict(os.environ))
    assert (done.returncode, done.stdout.startswith("FAIL "), done.stderr) == (1, True, "")


# -- refused exports --------------------------------------------------------------------------------------------------


def test_changed_machine_code_is_refused(record: ExportRecord, cache: Path) -> None:
    for kind in ("torch", "cubin", "ptx"):
        with pytest.raises(UsageError, match="c0de"):
            export_files(kind, [record], f"best.{'py' if kind == 'torch' else kind}", cache)


def test_unknown_formats_and_invalid_names_are_refused(record: ExportRecord, cache: Path) -> None:
    with pytest.raises(UsageError, match=r"'so'.*cu, torch, header, cubin, ptx"):
        export_files("so", [record], "best.so", cache)
    for kind in set(FORMATS) - {"torch", "header"}:
        with pytest.raises(UsageError, match=r"not 2.*torch.*header"):
            export_files(kind, [record, record], f"best.{kind}", cache)
    for stem in ("my-best", "class", "None"):
        with pytest.raises(UsageError, match=rf"'{stem}\.py'"):
            export_files("torch", [record], f"{stem}.py", cache)
    with pytest.raises(UsageError, match=r"must end in \.cubin"):
        export_files("cubin", [record], "best.bin", cache)
