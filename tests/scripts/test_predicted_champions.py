"""``predicted_champions.py``: forecasts of the champions of the models' page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evoengine.space.loader import find_space
from tests.scripts.running import ROOT, Run, load

RESULTS = ROOT / "docs/results"


@pytest.mark.parametrize(("page", "gpu"), [("models.json", "h200"), ("models-h100.json", "h100-sxm")])
def test_forecasts_are_near_the_measured_times(run: Run, tmp_path: Path, page: str, gpu: str) -> None:
    done = run("predicted_champions.py", RESULTS / page, "--out", tmp_path / "found")
    assert done.returncode == 0, done.stderr
    measured = {row["name"]: row["ours_us"] for row in json.loads((RESULTS / page).read_text())["problems"]}
    found = json.loads((tmp_path / "found.json").read_text())
    assert {one["gpu"] for one in found} == {gpu}
    assert all(one["measured_us"] == measured[one["name"]] for one in found)
    assert all(0.7 < one["predicted_us"] / one["measured_us"] < 1.4 for one in found)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == len(found)
    left_out = done.stdout.partition("Left out:")[2]
    assert {one["name"] for one in found}.isdisjoint(left_out.replace(",", " ").replace(".", " ").split())


def test_a_config_is_read_as_it_is_printed() -> None:
    script, space = load("predicted_champions"), find_space("hopper")
    config = space.config({tunable.name: tunable.values[-1] for tunable in space.tunables})
    assert script.config_of(str(config), space) == config
    assert script.config_of(f"{config} NO_TUNABLE=1", space) == config
    with pytest.raises(KeyError):
        script.config_of("STAGES=77", space)
