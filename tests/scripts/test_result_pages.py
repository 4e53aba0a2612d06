"""Pages of ``result_pages.py`` from hand-made documents and rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from evoengine.model import Config, Evaluation, Status
from tests.scripts.running import Run, load


def evaluation(serial: int, **seconds: float) -> Evaluation:
    return Evaluation(config=Config.of("any", {"SERIAL": serial}), status=Status.OK, stage_seconds=seconds)


def test_gate_cost_adds_parity_and_recheck_per_candidate() -> None:
    rows = [evaluation(n, load=0.001, parity=0.010 + 0.001 * n, recheck=0.030 - 0.002 * n) for n in range(11)]
    rows.append(evaluation(11, parity=0.5))  # no re-check: not counted in the whole gate
    lines = load("result_pages").gate_cost_table(rows).splitlines()
    assert lines[2:] == [
        "| load | 11 | 1.0 | 1.0 | 1.0 |",
        "| parity | 12 | 15.5 | 500.0 | 500.0 |",
        "| recheck | 11 | 20.0 | 30.0 | 30.0 |",
        "| **gate: parity + recheck** | 11 | 35.0 | 40.0 | 40.0 |",
    ]


def test_page_of_the_null_control(run: Run, tmp_path: Path) -> None:
    runs = [{"refused": refused, "evaluated": 500, "luckiest": 0.96, "failed": 0} for refused in (3, 5)]
    document = {"strategy": "random", "budget": 500, "conditions": [{"name": "noise 1 %", "accepted": 0, "runs": runs}]}
    (tmp_path / "null.json").write_text(json.dumps(document))
    done = run("result_pages.py", "null", tmp_path / "null.json", "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    row = "| noise 1 % | random | 2 of 500 | 1,000 | 0 | 8 (median 4 a search) | 4.0% | 0 |"
    assert row in (tmp_path / "page.md").read_text()


def test_page_of_tuned_models(run: Run, tmp_path: Path) -> None:
    problem = {"call": "1x8x512x64-fp16", "count": 12, "share": 0.75, "median_us": 4.0, "sdpa_us": 8.0}
    problem |= {"candidates": 300, "shared_with": "1x8x640x64-fp16", "sharing_cost": 0.02, "reason": ""}
    times = {"way": "graph", "torch_us": 120.0, "evoengine_us": 100.0, "gain": 1.2, "largest_difference": 1e-3}
    failed = dict.fromkeys(("torch_us", "evoengine_us", "gain", "largest_difference"))
    refused = {"call": "1x8x512x64 float16", "count": 2, "reason": "kernels take no attn_mask"}
    document: dict[str, Any] = {"problems": [problem], "refused": [refused]}
    document["times"] = [times | {"reason": ""}, failed | {"way": "compiled", "reason": "no compiler"}]
    (tmp_path / "vit.json").write_text(json.dumps(document))
    done = run("result_pages.py", "tune-model", tmp_path / "vit.json", "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.md").read_text()
    assert "| vit | graph | 120.00 | 100.00 | **1.20** | 1.0e-03 |  |" in text
    assert "| vit | compiled | – | – | – | – | no compiler |" in text
    shared = "`1x8x640x64-fp16`, 2.0% slower than its own"
    assert f"| vit | `1x8x512x64-fp16` | 12 | 75.0% | 4.00 | 8.00 | 2.00 | 300 | {shared} |" in text
    assert re.search("^- vit: .*2 of 1x8x512x64 float16: .*attn_mask", text, re.MULTILINE)


def elite(rank: int, predicted_us: float, measured_us: float | None, stages: int) -> dict[str, Any]:
    ratio = None if measured_us is None else measured_us / predicted_us
    config = {"BLOCK_N": 64, "STAGES_K": stages}
    status = None if measured_us is None else "ok"
    found = {"rank": rank, "row": rank, "family": "mma", "config": config, "status": status, "reason": ""}
    return found | {"predicted_us": predicted_us, "measured_us": measured_us, "ratio": ratio}


def test_page_of_verified_elites(run: Run, tmp_path: Path) -> None:
    document = {
        "problem": "1x8x512x64-fp16",
        "predicted_for": "NVIDIA H200 SXM5 141GB",
        "model": "model-v4",
        "device": "NVIDIA H200",
        "compared": 2,
        "spearman": None,
        "median_ratio": 1.05,
        "best_rank": 2,
        "best_us": 4.4,
        "elites": [elite(1, 4.0, 4.5, 1), elite(2, 4.1, 4.4, 2), elite(3, 4.2, None, 2)],
    }
    (tmp_path / "one.json").write_text(json.dumps(document))
    done = run("result_pages.py", "verify", tmp_path / "one.json", "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "page.json").read_text()) == [document]
    assert "| 2 | 4.00 to 4.20 µs | 4.40 to 4.50 µs | – | 1.050 | number 2 predicted |" in done.stdout
    assert "| 1 | 4.00 | 4.50 | 1.125 | ok | mma | STAGES_K=1 |" in done.stdout
    assert "| 3 | 4.20 | – | – | not valid here | mma | STAGES_K=2 |" in done.stdout
    assert "BLOCK_N" not in done.stdout, "the value is the same in all elites"
