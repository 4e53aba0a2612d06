"""``scripts/measure/judge_model.py``: its figures computed by hand, and a page about a synthetic landscape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from evoengine.landscape.file import keyed, pack_landscape, read_landscape
from evoengine.model import DeviceInfo
from tests.landscape.making import RECORDED
from tests.scripts.running import Run, load


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("judge_model")


def test_results_for_hand_made_values(script: ModuleType) -> None:
    measured = [float(us) for us in range(10, 50)]
    right = script.judge("model", [us * 1.1 for us in measured], measured, 8.0)
    assert (right.spearman, right.top, right.top_of_all) == (1.0, 1.0, 1.25)
    assert (right.error, right.bias) == (0.1, 1.1)
    wrong = script.judge("model", [-us for us in measured], measured, 10.0, times=False)
    assert (wrong.spearman, wrong.error, wrong.bias) == (-1.0, None, None)
    assert wrong.top == 3.0, "the 20 slowest start at 30"
    same = script.judge("model", [1.0] * 40, measured[::-1], 10.0)
    assert (same.spearman, same.top) == (0.0, 3.0), "ties keep the order of the sample"


@pytest.mark.thorough
def test_page_is_reproducible_and_marks_the_fit(run: Run, tmp_path: Path) -> None:
    recorded = read_landscape(RECORDED)
    [family] = recorded.families
    measured = tuple(
        one if one.timing is None else replace(one, timing=replace(one.timing, predicted=False, method="graph-warm"))
        for one in family.evaluations
    )
    gpu = DeviceInfo("cuda", "NVIDIA H200", "sm_90", predicted=False, driver="13.0", nvrtc="13.0")
    families = (replace(family, evaluations=measured),)
    landscape = keyed(replace(recorded, device=gpu, method="graph-warm", families=families))
    file = tmp_path / "measured.landscape.xz"
    file.write_bytes(pack_landscape(landscape))
    pages = []
    for name in ("one", "two"):
        out = tmp_path / name
        done = run("judge_model.py", file, "--sample=3", f"--cache={tmp_path / 'cache'}", f"--out={out}")
        assert done.returncode == 0, done.stderr
        pages.append(out.with_suffix(".md").read_text().replace(str(out), ""))
    assert pages[0] == pages[1]
    assert "not used for the fit" in pages[0]
    [part] = json.loads((tmp_path / "one.json").read_text())["landscapes"]
    rankings = {one["ranking"]: one for one in part["judgements"]}
    assert set(rankings) == {"latency model", "config alone", "roofline", "occupancy", "config alone, all configs"}
    assert rankings["config alone, all configs"]["configs"] == len(measured)
    assert rankings["latency model"]["error"] is not None


@pytest.mark.thorough
def test_simulated_families_are_judged_and_fitted(run: Run, tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[2] / "docs/results/samples/2x12x384x64-hopper-h200.landscape.xz"
    out = tmp_path / "page"
    fit = f"--fit-simulation={sample}"
    done = run("judge_model.py", sample, "--sample=2", fit, f"--cache={tmp_path / 'cache'}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "fitted: SimulationConstants(" in done.stderr
    assert "hopper, on NVIDIA H200: used for the fit" in out.with_suffix(".md").read_text()
    [part] = json.loads(out.with_suffix(".json").read_text())["landscapes"]
    rankings = {one["ranking"]: one for one in part["judgements"]}
    assert set(rankings) == {"latency model", "config alone", "occupancy", "config alone, all configs"}
    assert rankings["config alone, all configs"]["spearman"] > 0.9


def test_predicted_landscapes_are_rejected(run: Run, tmp_path: Path) -> None:
    done = run("judge_model.py", RECORDED, f"--cache={tmp_path}")
    assert done.returncode == 2
    assert "measured landscapes" in done.stderr
