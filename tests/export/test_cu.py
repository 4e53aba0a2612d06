"""The exported file: its provenance, what nvcc says of it, and (with a GPU) what it says of itself."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from evoengine.errors import UsageError
from evoengine.export import ExportRecord, export_cu


def compile_with(nvcc: str, text: str, folder: Path, *options: str) -> str:
    """Compiles a text to an object file; returns what nvcc said."""
    file = folder / "best.cu"
    file.write_text(text)
    done = subprocess.run(
        [nvcc, *options, "-c", str(file), "-o", str(folder / "best.o")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_head_comment_tells_where_it_comes_from(record: ExportRecord) -> None:
    head = export_cu(record).split("\n\n")[0]
    assert all(line.startswith("//") for line in head.splitlines())
    for fact in (
        *(
            "1x2x96x64-fp16",
            "plain",
            "BLOCK_M=64 LAYOUT=swizzle",
            "NVIDIA H200",
            "sm_90",
            "13.0.88",
            "nvcc -arch=sm_90",
        ),
        *(
            "7e3914",
            "5052c3",
            "c0de",
            "median 5.250 us measured",
            "5.200 to 5.300",
            "1.75 times",
            "2026-01-02",
            "2026-01-03",
        ),
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
    assert "predicted by model-v1, not measured" in head
    assert "measured (" not in head


def test_the_kernel_is_the_stored_text(record: ExportRecord) -> None:
    assert record.evaluation.source.strip() in export_cu(record)


def test_a_row_without_source_is_refused(record: ExportRecord) -> None:
    empty = dataclasses.replace(record, evaluation=dataclasses.replace(record.evaluation, source=""))
    with pytest.raises(UsageError, match="no stored source"):
        export_cu(empty)


def test_nvcc_takes_it_without_a_warning(nvcc: str, record: ExportRecord, tmp_path: Path) -> None:
    archs = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in (80, 89, 90)]
    assert compile_with(nvcc, export_cu(record), tmp_path, "-std=c++17", *archs) == ""


def test_nvcc_takes_it_as_a_library(nvcc: str, causal_record: ExportRecord, tmp_path: Path) -> None:
    assert compile_with(nvcc, export_cu(causal_record), tmp_path, "-arch=sm_89", "-DEVO_NO_MAIN") == ""


def test_a_register_cap_reaches_nvcc(nvcc: str, record: ExportRecord, tmp_path: Path) -> None:
    capped = dataclasses.replace(record, maxrregcount=24)
    said = compile_with(nvcc, export_cu(capped), tmp_path, "-arch=sm_89", "-DEVO_NO_MAIN", "-Xptxas", "-v")
    used = re.search(r"Used (\d+) registers", said)
    assert used is not None
    assert int(used.group(1)) <= 24
    free = re.search(
        r"Used (\d+) registers",
        compile_with(nvcc, export_cu(record), tmp_path, "-arch=sm_89", "-DEVO_NO_MAIN", "-Xptxas", "-v"),
    )
    assert free is not None
    assert int(free.group(1)) > 24


def test_launch_bounds_make_a_register_cap_moot(record: ExportRecord) -> None:
    source = record.evaluation.source.replace("__global__ void", "__global__ void __launch_bounds__(64)")
    bound = dataclasses.replace(
        record, maxrregcount=24, evaluation=dataclasses.replace(record.evaluation, source=source)
    )
    assert "__maxnreg__" not in export_cu(bound)


def build_and_run(nvcc: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compiles for the GPU at hand and runs the file's own check."""
    file = folder / "best.cu"
    file.write_text(text)
    subprocess.run([nvcc, "-arch=native", str(file), "-o", str(folder / "best")], check=True)
    return subprocess.run([str(folder / "best")], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["record", "causal_record"])
def test_it_passes_its_own_check(nvcc: str, request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    done = build_and_run(nvcc, export_cu(request.getfixturevalue(name)), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^PASS max_error=\S+ tolerance=\S+ median_us=\d+\.\d+ ", done.stdout, re.MULTILINE)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("correct", "broken"),
    [
        ("sum * rescale + weight", "sum + weight"),
        ("j < visible", "j < visible - 1"),
        ("g_o[d] = ", "if (row != 5) g_o[d] = "),
        ("o[d] * rescale + weight", "o[d] + weight"),
    ],
)
def test_it_rejects_a_broken_kernel(nvcc: str, record: ExportRecord, tmp_path: Path, correct: str, broken: str) -> None:
    assert correct in record.evaluation.source
    source = record.evaluation.source.replace(correct, broken)
    text = export_cu(dataclasses.replace(record, evaluation=dataclasses.replace(record.evaluation, source=source)))
    done = build_and_run(nvcc, text, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL" in done.stdout
