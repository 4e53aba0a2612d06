"""Files of the rbk benchmark, and a task of robust-kbench."""

from __future__ import annotations

import ast
import csv
import dataclasses
import importlib.util
import io
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from evoengine.errors import LandscapeError, UsageError
from evoengine.export.record import ExportRecord
from evoengine.export.robust_kbench import task_files
from evoengine.interop.rbk import rbk_csv, rbk_markdown, rbk_report, read_rbk_config
from evoengine.kernel.records import LaunchSpec
from evoengine.model import Config, DType, Evaluation, Problem, Status, Timing
from tests.report.boards import BEST_US, H200, L4, fill, key_of, open_board

CONFIG = """
warmups: 20
iterations: 100
output_dir: out
save_json: true
save_csv: true
shapes:
  - {name: canonical, batch_size: 1, num_heads: 8, seq_len: 512, head_dim: 64, causal: false, dtype: float16}
  - {name: long, batch_size: 4, num_heads: 16, seq_len: 2048, head_dim: 128, causal: true, dtype: bfloat16}
"""


def test_the_config_names_problems(tmp_path: Path) -> None:
    file = tmp_path / "rbk_config.yaml"
    file.write_text(CONFIG)
    config = read_rbk_config(file)
    assert [(shape.name, shape.problem) for shape in config.shapes] == [
        ("canonical", Problem(1, 8, 512, 64)),
        ("long", Problem(4, 16, 2048, 128, causal=True, dtype=DType.BF16)),
    ]
    assert (config.output_dir, config.save_json, config.save_csv, config.save_markdown) == ("out", True, True, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shapes: [", "is not YAML"),
        ("- 1", "rbk_config.yaml: "),
        ("shapes: []", "shapes: "),
        ("shape: []", "unknown.*shape|shape.*unknown"),
        ("!!python/object/apply:os.system [id]", "is not YAML"),
        *((f"a: !!{tag}", "is not YAML") for tag in ("int ''", "bool x", "timestamp x", "str [a]", "map [1]")),
        ("a: &a [1]\nshapes: *a", "alias"),
        ("shapes: " + "[" * 100, "nested deeper"),
        ("a: 1\na: 2", "'a' twice"),
        ("warmups: " + "9" * 5000, "64 bits"),
        ("warmups: 1" + ":01" * 2000, "64 bits"),
        ("warmups: .inf", "finite"),
        ("warmups: [" + "1," * 20_000 + "]", "values"),
        ("? [1]\n: 2", "is not YAML|key"),
        ('output_dir: "\\e[31m"', "control"),
        (CONFIG.replace("seq_len: 512", "seq_len: 0"), r"shapes\[0\]\.seq_len: .*>= 1"),
        (CONFIG.replace("dtype: float16", "dtype: fp8"), r"shapes\[0\]\.dtype: is 'fp8'"),
        (CONFIG.replace("causal: true", "causal: maybe"), r"shapes\[1\]\.causal: "),
        (CONFIG.replace("name: long", "name: canonical"), "shapes: .*same name"),
        (CONFIG.replace("head_dim: 128", "headdim: 128"), r"shapes\[1\].*headdim"),
    ],
)
def test_a_bad_config_is_refused_with_file_key_and_reason(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "rbk_config.yaml"
    file.write_text(text)
    with pytest.raises(LandscapeError, match=says) as refusal:
        read_rbk_config(file)
    assert "\n" not in str(refusal.value)


def report_of(folder: Path, device: Any) -> dict[str, Any]:
    file = folder / "rbk_config.yaml"
    file.write_text(CONFIG)
    with open_board(folder) as board:
        study = fill(board, device)
        champion = board.champion(study.scope)
        assert champion is not None
        return rbk_report(read_rbk_config(file).shapes, {study.scope.problem: board.get(champion.id)})


def test_the_report_holds_the_measured_times(tmp_path: Path) -> None:
    report = report_of(tmp_path, H200)
    (result,) = report["results"]
    samples = np.array([BEST_US * 0.99, BEST_US, BEST_US * 1.01]) / 1e3
    for share in (50, 90, 95, 99):
        assert result[f"p{share}_latency_ms"] == pytest.approx(np.percentile(samples, share))
    assert result["mean_latency_ms"] == pytest.approx(samples.mean())
    assert result["std_latency_ms"] == pytest.approx(samples.std(ddof=1))
    assert result["tflops"] == pytest.approx(4 * 8 * 512 * 512 * 64 / (BEST_US * 1e-6) / 1e12)
    assert result["kernel_name"] == "evoengine-wmma"
    assert report["missing"] == ["long"]
    assert report["summary"]["total_shapes"] == 2
    assert json.loads(json.dumps(report)) == report
    assert "| canonical | evoengine-wmma |" in rbk_markdown(report)
    assert "without a correct kernel: long" in rbk_markdown(report)
    result["shape"]["name"] = 'a "name", with a comma'
    (line,) = csv.DictReader(io.StringIO(rbk_csv(report)))
    assert line["name"] == 'a "name", with a comma'
    assert float(line["p50_latency_ms"]) == result["p50_latency_ms"]


def test_a_rate_that_is_not_finite_is_null(tmp_path: Path) -> None:
    file = tmp_path / "rbk_config.yaml"
    file.write_text(CONFIG)
    with open_board(tmp_path) as board:
        study = fill(board, H200)
        champion = board.champion(study.scope)
        assert champion is not None
        record = board.get(champion.id)
        assert record.evaluation.timing is not None
        timing = replace(record.evaluation.timing, median_us=5e-324)
        record = replace(record, evaluation=replace(record.evaluation, timing=timing))
        report = rbk_report(read_rbk_config(file).shapes, {study.scope.problem: record})
    assert report["results"][0]["tflops"] is report["summary"]["mean_tflops"] is None
    json.dumps(report, allow_nan=False)
    assert "– TFLOP/s" in rbk_markdown(report)


def test_predictions_are_marked(tmp_path: Path) -> None:
    report = report_of(tmp_path, L4)
    assert report["results"][0]["kernel_name"] == "evoengine-wmma-predicted"
    assert report["results"][0]["raw_latencies_ms"] == []
    assert "not measured" in rbk_markdown(report)


PROBLEMS = [
    Problem(1, 2, 48, 64),
    Problem(2, 4, 33, 64, kv_heads=2, seq_kv=70, causal=True, dtype=DType.BF16),
    Problem(1, 2, 40, 64, window_left=9, window_right=3, softcap=5.0),
]


def task_of(problem: Problem) -> dict[str, str]:
    kernel = 'extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p) {}\n'
    evaluation = Evaluation(
        Config.of("plain", {"N": 1}), Status.OK, source=kernel, timing=Timing(1.0, 1.0, 1.0, False, "graph-warm")
    )
    launch = LaunchSpec(("seq_q", "heads", "batch"), 64, 0, (("N", 1),))
    return task_files(ExportRecord(problem, evaluation, key_of(H200).device, launch))


def module_of(files: dict[str, str], folder: Path) -> ModuleType:
    file = folder / "func_forward.py"
    file.write_text(files["func_forward.py"])
    spec = importlib.util.spec_from_file_location("func_forward", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exact(problem: Problem, q: Any, k: Any, v: Any) -> Any:
    """Attention by its definition, row by row, in float64."""
    out = np.zeros(q.shape)
    groups = problem.heads // problem.kv_heads
    for b, h, row in np.ndindex(*q.shape[:3]):
        first, end = problem.seen_keys(row, q.shape[2], k.shape[2])
        keys = range(max(0, first), max(0, end))
        if not keys:
            continue
        logits = np.array([q[b, h, row] @ k[b, h // groups, key] for key in keys]) / problem.head_dim**0.5
        if problem.softcap:
            logits = problem.softcap * np.tanh(logits / problem.softcap)
        weights = np.exp(logits - logits.max())
        out[b, h, row] = weights / weights.sum() @ v[b, h // groups, list(keys)]
    return out


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_the_task_computes_the_problem(problem: Problem, tmp_path: Path) -> None:
    import torch

    module = module_of(task_of(problem), tmp_path)
    configs = json.loads(task_of(problem)["config_forward.json"])
    assert set(configs) == {f"{n}_{kind}_configs" for n in ("single", "multi") for kind in ("input", "init", "shared")}
    torch.manual_seed(0)
    for arguments in configs["multi_input_configs"]:
        q, k, v = module.get_inputs(**arguments, device="cpu")
        assert q.dtype is (torch.bfloat16 if problem.dtype is DType.BF16 else torch.float16)
        o = module.Model()(q, k, v)
        assert o.shape == q.shape
        truth = exact(problem, *(tensor.double().numpy() for tensor in (q, k, v)))
        assert np.abs(o.double().numpy() - truth).max() < (2e-2 if problem.dtype is DType.BF16 else 2e-3)
    assert module.input_names == ["q", "k", "v"]


def test_the_extension_exports_forward_and_has_no_main() -> None:
    files = task_of(PROBLEMS[0])
    assert files["forward.cu"].index("#define EVO_NO_MAIN") < files["forward.cu"].index("#include")
    assert 'm.def("forward"' in files["forward.cu"]
    ast.parse(files["func_forward.py"])


@pytest.mark.parametrize("extra", [{"sink": True}, {"lse": True}, {"lengths_q": (48,)}])
def test_problems_that_a_task_cannot_express_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot express"):
        task_of(dataclasses.replace(PROBLEMS[0], **extra))
