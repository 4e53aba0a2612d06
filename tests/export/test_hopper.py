"""Exports of a kernel that only sm_90a can run: other architectures are refused with a clear message."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from evoengine.cli.output.verbosity import warn
from evoengine.cli.verbs.export import run_export
from evoengine.engine.options.verbs import ExportOptions
from evoengine.engine.rows.kernels import export_record
from evoengine.export.robust_kbench import task_files
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from evoengine.runtime.embedded_kernels import can_run
from tests.api.boards import Entry, mma, store, wgmma

OWN = "-gencode=arch=compute_90a,code=sm_90a"
SMALL, OTHER = Problem(1, 2, 128, 64), Problem(1, 2, 256, 64)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Leaderboard with a kernel for sm_90a and an older one for plain sm_90, both of an H200."""
    folder = tmp_path_factory.mktemp("hopper")
    store(folder / "board.db", folder / "cache", Entry(SMALL, wgmma(), arch="sm_90a"), Entry(OTHER, mma()))
    return folder / "board.db"


def exported(board: Path, folder: Path, name: str, form: str) -> Path:
    run_export(ExportOptions(str(folder / name), best=True, problem=SMALL.key, format=form, db=str(board)))
    return folder / name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form", "more"), [("best.cu", "cu", ()), ("best.h", "header", ("-x", "cu"))])
def test_compiling_for_another_architecture_fails_with_the_option(
    nvcc: str, board: Path, tmp_path: Path, name: str, form: str, more: tuple[str, ...]
) -> None:
    file = exported(board, tmp_path, name, form)
    assert OWN in file.read_text()
    command = [nvcc, *more, "-arch=sm_90", "-c", str(file), "-o", str(tmp_path / "x.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"nvcc {OWN}" in done.stderr


@pytest.mark.slow
def test_the_file_compiles_for_its_architecture(nvcc: str, board: Path, tmp_path: Path) -> None:
    file = exported(board, tmp_path, "best.cu", "cu")
    command = [nvcc, OWN, "-DEVO_NO_MAIN", "-c", str(file), "-o", str(tmp_path / "x.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_torch_extension_names_its_architecture_setting(board: Path) -> None:
    with Leaderboard(f"sqlite:///{board}", create=False) as opened:
        plain, own = (task_files(export_record(opened.get(row), None, warn))["forward.cu"] for row in (2, 1))
    assert "TORCH_CUDA_ARCH_LIST=9.0a" in own.partition("#include <torch")[2][:600]
    assert "TORCH_CUDA_ARCH_LIST" not in plain


@pytest.mark.parametrize("form", ["cubin", "ptx"])
def test_manifests_name_the_architecture(board: Path, tmp_path: Path, form: str) -> None:
    exported(board, tmp_path, f"best.{form}", form)
    assert json.loads((tmp_path / "best.json").read_text())["arch"] == "sm_90a"


def test_a_module_runs_it_on_its_architecture_only(board: Path, tmp_path: Path) -> None:
    text = exported(board, tmp_path, "kit.py", "torch").read_text()
    assert "arch='sm_90a'" in text
    assert [can_run("sm_90a", capability) for capability in ((9, 0), (9, 1), (8, 9), (10, 0), (12, 0))] == [
        True,
        False,
        False,
        False,
        False,
    ]
