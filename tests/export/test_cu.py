"""Exported .cu file: provenance, compilation by nvcc without warnings, and on a GPU its self-check."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from evoengine.device.contract import exact_attention
from evoengine.errors import UsageError
from evoengine.export import ExportRecord, export_cu
from evoengine.kernel.abi import BufferAddresses, Placement, pack_params
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.memory_layout import AxisOrder, TensorLayout
from evoengine.model import Problem


def compile_with(nvcc: str, text: str, folder: Path, *options: str) -> str:
    """Compiles a text to an object file; returns the output of nvcc."""
    file = folder / "best.cu"
    file.write_text(text)
    done = subprocess.run(
        [nvcc, *options, "-c", str(file), "-o", str(folder / "best.o")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_head_comment_states_the_provenance(record: ExportRecord) -> None:
    head = export_cu(record).split("\n\n")[0]
    assert all(line.startswith("//") for line in head.splitlines())
    for fact in (
        *("1x2x96x64-fp16", "plain", "BLOCK_M=64 LAYOUT=swizzle", "NVIDIA H200", "sm_90", "13.0.88"),
        *("nvcc -arch=sm_90", "7e3914", "5052c3", "c0de", "median 5.250 us measured", "5.200 to 5.300"),
        *("1.75 times", "2026-01-02", "2026-01-03"),
    ):
        assert fact in head, fact


def test_a_prediction_is_marked(record: ExportRecord) -> None:
    assert record.evaluation.timing is not None
    timing = dataclasses.replace(record.evaluation.timing, predicted=True, method="model-v1", baseline_us=None)
    predicted = dataclasses.replace(
        record,
        evaluation=dataclasses.replace(record.evaluation, timing=timing),
        device=dataclasses.replace(record.device, kind="emulator", predicted=True),
    )
    head = export_cu(predicted).split("\n\n")[0]
    assert "predicted by model-v1" in head
    assert "measured (" not in head


def test_the_kernel_is_the_stored_text(record: ExportRecord) -> None:
    assert record.evaluation.source.strip() in export_cu(record)


def test_a_row_without_source_is_refused(record: ExportRecord) -> None:
    empty = dataclasses.replace(record, evaluation=dataclasses.replace(record.evaluation, source=""))
    with pytest.raises(UsageError, match="no stored source"):
        export_cu(empty)


@pytest.mark.thorough
def test_nvcc_compiles_it_without_a_warning(nvcc: str, record: ExportRecord, tmp_path: Path) -> None:
    """For the oldest architecture; in CI, :func:`program` compiles files with their ``main`` for sm_90."""
    oldest = dataclasses.replace(record, device=dataclasses.replace(record.device, arch="sm_80"))
    assert compile_with(nvcc, export_cu(oldest), tmp_path, "-std=c++17", "-arch=sm_80") == ""


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(f"{name}_record", marks=pytest.mark.thorough) for name in ("causal", "rich")), "packed_record"],
)
def test_nvcc_compiles_it_as_a_library(nvcc: str, request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    text = export_cu(request.getfixturevalue(name))
    assert compile_with(nvcc, text, tmp_path, "-arch=sm_90", "-DEVO_NO_MAIN") == ""


@pytest.mark.parametrize(
    "options",
    [
        (),
        *(
            pytest.param(one, marks=pytest.mark.thorough)
            for one in (("-arch=sm_80",), ("-arch=sm_89", "-DEVO_NO_MAIN"))
        ),
    ],
)
def test_an_older_architecture_is_refused_with_the_option(
    nvcc: str, record: ExportRecord, tmp_path: Path, options: tuple[str, ...]
) -> None:
    file = tmp_path / "best.cu"
    file.write_text(export_cu(record))
    command = [nvcc, *options, "-c", str(file), "-o", str(tmp_path / "best.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if "error: #error" in line]
    assert "nvcc -arch=sm_90 " in line
    assert "asm" not in done.stderr  # nothing of the kernel was compiled


def test_an_older_architecture_can_be_forced(nvcc: str, record: ExportRecord, tmp_path: Path) -> None:
    options = ("-arch=sm_80", "-DEVO_NO_MAIN", "-DEVO_ANY_ARCH")
    assert compile_with(nvcc, export_cu(record), tmp_path, *options) == ""


DUMP = """
#undef main
void dump(const void* data, size_t bytes) { std::fwrite(data, 1, bytes, stdout); }
template <typename T>
void dump(const std::vector<T>& values) {
    const size_t count = values.size();
    dump(&count, sizeof count);
    dump(values.data(), count * sizeof(T));
}
int main(int argc, char** argv) {
    if (argc > 1) return file_main(1, argv);
    using namespace evo_check;
    for (const float scale : {0.125f, -0.25f, 0.0f, 0x1p127f})
        for (const float softcap : {0.0f, 5.0f, 0x1p-100f}) {
            AttentionParams params{};
            evo_set_scale(params, scale, softcap);
            for (const float x : {params.scale_log2, params.softcap_log2, params.softcap_scale}) dump(&x, sizeof x);
        }
    for (const Shape& shape : {own_shape(), ragged_shape()}) {
        const Inputs inputs = draw(shape, 7);
        const Reference truth = reference(shape, inputs);
        dump(shape.lengths_q);
        dump(shape.lengths_kv);
        dump(inputs.q);
        dump(inputs.k);
        dump(inputs.v);
        dump(inputs.sink);
        dump(truth.rows);
        dump(truth.offsets);
        dump(truth.lse);
        dump(truth.lse_offsets);
    }
}
"""
KINDS = (*(np.int32,) * 2, *(np.uint16,) * 3, np.float32, np.float64, np.uint64, np.float64, np.uint64)


def dumped(data: bytes) -> list[list[np.ndarray]]:
    """Returns the arrays that ``DUMP`` wrote, by shape."""
    found, at = [], 0
    while at < len(data):
        arrays = []
        for kind in KINDS:
            count = int.from_bytes(data[at : at + 8], "little")
            arrays.append(np.frombuffer(data, kind, count, at + 8))
            at += 8 + count * np.dtype(kind).itemsize
        found.append(arrays)
    return found


REFERENCES = ("rich_record", "packed_record", pytest.param("causal_record", marks=pytest.mark.thorough))


@pytest.fixture(scope="module")
def program(
    nvcc: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Compiles the file of a record; the program dumps its references, or runs its own check if it gets an argument."""

    @functools.cache
    def compiled(name: str) -> Path:
        folder = tmp_path_factory.mktemp("dump")
        text = export_cu(request.getfixturevalue(name))
        (folder / "dump.cu").write_text(f"#define main file_main\n{text}{DUMP}")
        command = [nvcc, "-std=c++17", "-arch=sm_90", str(folder / "dump.cu"), "-o", str(folder / "dump")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        return folder / "dump"

    return compiled


@pytest.mark.slow
def test_without_a_gpu_it_says_so(program: Callable[[str], Path]) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [str(program("packed_record")), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "GPU" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_its_reference_is_attention(program: Callable[[str], Path], request: pytest.FixtureRequest, name: str) -> None:
    """The file compiles without a warning. Its self-check's reference runs on the CPU, so this test needs no GPU."""
    record: ExportRecord = request.getfixturevalue(name)
    shown = subprocess.run([str(program(name))], check=True, capture_output=True).stdout
    scales = np.frombuffer(shown, np.float32, 4 * 3 * 3)
    np.testing.assert_allclose(scales, packed_scales(), rtol=1e-7)
    own, ragged = dumped(shown[scales.nbytes :])
    assert_reference(record.problem, own, "bhsd")
    assert_reference(record.problem, ragged, "bshd", -0.3)
    lengths = record.problem.lengths_q or (record.problem.seq_q,) * record.problem.batch
    assert tuple(own[0]) == lengths


def packed_scales() -> np.ndarray:
    """Returns what ``pack_params`` makes of the scales and softcaps in ``DUMP``."""
    nowhere = BufferAddresses(*(Placement(0, (0, 0, 0)),) * 4)
    names = ["scale_log2", "softcap_log2", "softcap_scale"]
    blocks = [
        pack_params(Problem(1, 1, 1, 64, softcap=softcap), nowhere, scale)
        for scale in (0.125, -0.25, 0.0, 2.0**127)
        for softcap in (0.0, 5.0, 2.0**-100)
    ]
    return np.array([block[name] for block in blocks for name in names])


def assert_reference(like: Problem, arrays: list[np.ndarray], order: AxisOrder, scale: float | None = None) -> None:
    """Compares one dumped reference, row by row, with attention by its definition."""
    lengths_q, lengths_kv, q, k, v, sink, rows, offsets, lse, lse_offsets = arrays
    problem = dataclasses.replace(
        like,
        batch=len(lengths_q),
        heads=sink.size,
        kv_heads=2,
        seq_q=int(lengths_q.max()),
        seq_kv=int(lengths_kv.max()),
        lengths_q=tuple(map(int, lengths_q)) if like.packed else (),
        lengths_kv=tuple(map(int, lengths_kv)) if like.packed else (),
    )
    layout = TensorLayout(order)

    def logical(values: np.ndarray, heads: int, count: int) -> np.ndarray:
        shape = (problem.memory_batch, heads, count, problem.head_dim)
        return layout.view(values, shape)

    tensors = (
        logical(q, problem.heads, problem.rows_q),
        logical(k, problem.kv_heads, problem.rows_kv),
        logical(v, problem.kv_heads, problem.rows_kv),
    )
    o, want_lse = exact_attention(AttentionInputs.of(problem, *tensors, order, sink if problem.sink else None, scale))
    flat = layout.place(o)
    want = flat[offsets[:, None].astype(np.int64) + np.arange(problem.head_dim)]
    assert len(offsets) == problem.heads * sum(queries for queries, _ in problem.sequences)
    np.testing.assert_allclose(rows.reshape(want.shape), want, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(lse, want_lse.reshape(-1)[lse_offsets.astype(np.int64)], rtol=1e-6)


@pytest.mark.slow
def test_a_register_cap_reaches_nvcc(nvcc: str, record: ExportRecord, tmp_path: Path) -> None:
    capped = dataclasses.replace(record, maxrregcount=24)
    said = compile_with(nvcc, export_cu(capped), tmp_path, "-arch=sm_90", "-DEVO_NO_MAIN", "-Xptxas", "-v")
    used = re.search(r"Used (\d+) registers", said)
    assert used is not None
    assert int(used.group(1)) <= 24
    free = re.search(
        r"Used (\d+) registers",
        compile_with(nvcc, export_cu(record), tmp_path, "-arch=sm_90", "-DEVO_NO_MAIN", "-Xptxas", "-v"),
    )
    assert free is not None
    assert int(free.group(1)) > 24


def test_a_register_cap_reaches_every_kernel(packed_record: ExportRecord) -> None:
    text = export_cu(dataclasses.replace(packed_record, maxrregcount=24))
    for entry in ("evo_attention", "evo_combine"):
        assert f'extern "C" __global__ __maxnreg__(24) void {entry}(' in text


def test_launch_bounds_override_a_register_cap(record: ExportRecord) -> None:
    source = record.evaluation.source.replace("__global__ void", "__global__ void __launch_bounds__(64)")
    bound = dataclasses.replace(
        record, maxrregcount=24, evaluation=dataclasses.replace(record.evaluation, source=source)
    )
    assert "__maxnreg__" not in export_cu(bound)


# -- on a GPU: the self-check of the file -----------------------------------------------------------------------------

RIGHT = ("record", "causal_record", "rich_record", "packed_record")
BROKEN = (
    ("sum * rescale + weight", "sum + weight"),
    ("j < visible", "j < visible - 1"),
    ("g_o[d] = ", "if (q_row != 5) g_o[d] = "),
    ("o[d] * rescale + weight", "o[d] + weight"),
)
BROKEN_FEATURES = (
    ("diagonal - p.window_left", "diagonal - p.window_left + 1"),
    ("diagonal + right + 1", "diagonal + right"),
    ("p.softcap_log2 * tanhf(p.softcap_scale * s)", "s * p.scale_log2"),
    ("sum * rescale + exp2f(sink - next)", "sum * rescale"),
    ("(maximum + log2f(sum)) * 0.693147181f", "maximum + log2f(sum)"),
    ("q + row, kv}", "q + row, 0}"),
    ("at.q_row, shelf, shelf[Cfg::HEAD_DIM]", "at.q_row, shelf, 0.0f"),
    ("== gridDim.x) *counter = 0", "== gridDim.x + 1) *counter = 0"),
)
Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(nvcc: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs the self-check of a file, by the name of its record or by the broken text.

    All files are compiled in parallel, because one after the other takes minutes.
    """
    records: dict[str, ExportRecord] = {name: request.getfixturevalue(name) for name in RIGHT}
    for name, edits in (("record", BROKEN), ("packed_record", BROKEN_FEATURES)):
        for correct, broken in edits:
            evaluation = records[name].evaluation
            assert correct in evaluation.source
            source = evaluation.source.replace(correct, broken)
            changed = dataclasses.replace(evaluation, source=source)
            records[broken] = dataclasses.replace(records[name], evaluation=changed)
    folder = tmp_path_factory.mktemp("checks")

    def build(number: int, record: ExportRecord) -> Path:
        file = folder / f"check{number}.cu"
        file.write_text(export_cu(record))
        subprocess.run([nvcc, "-arch=native", "-DEVO_ANY_ARCH", str(file), "-o", str(file.with_suffix(""))], check=True)
        return file.with_suffix("")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = {name: pool.submit(build, number, record) for number, (name, record) in enumerate(records.items())}
        yield lambda name: subprocess.run(
            [str(programs[name].result())], capture_output=True, text=True, check=False, timeout=600
        )


@pytest.mark.gpu
@pytest.mark.parametrize("name", RIGHT)
def test_it_passes_its_own_check(run: Run, name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^PASS max_error=\S+ tolerance=\S+ median_us=\d+\.\d+ ", done.stdout, re.MULTILINE)


@pytest.mark.gpu
@pytest.mark.parametrize("broken", [broken for _, broken in BROKEN + BROKEN_FEATURES])
def test_it_rejects_a_broken_kernel(run: Run, broken: str) -> None:
    done = run(broken)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL" in done.stdout
