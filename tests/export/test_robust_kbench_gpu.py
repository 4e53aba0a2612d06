"""The torch extension of a robust-kbench task, built by torch and compared with the task's PyTorch function."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from evoengine.export import ExportRecord
from evoengine.export.robust_kbench import task_files


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ninja") is None, reason="torch builds extensions with ninja")
def test_the_extension_agrees_with_the_function(causal_record: ExportRecord, nvcc: str, tmp_path: Path) -> None:
    import torch
    from torch.utils.cpp_extension import load

    for name, text in task_files(causal_record).items():
        (tmp_path / name).write_text(text)
    spec = importlib.util.spec_from_file_location("func_forward", tmp_path / "func_forward.py")
    assert spec is not None
    assert spec.loader is not None
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    built = tmp_path / "build"
    built.mkdir()
    extension = load(name="evo_forward", sources=[str(tmp_path / "forward.cu")], build_directory=str(built))
    torch.manual_seed(0)
    for sizes in ({}, {"batch_size": 3, "seq_len_q": 33, "seq_len_kv": 47}):
        inputs = task.get_inputs(**sizes)
        truth = task.Model()(*inputs)
        out = task.Model()(*inputs, fn=extension.forward)
        assert out.shape == truth.shape
        assert (out.float() - truth.float()).abs().max().item() < 4e-3
