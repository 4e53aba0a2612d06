"""``forecast_pairs.py``: the measured effects are those of the recorded times."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from statistics import median

from evoengine.landscape.file import read_landscape
from tests.scripts.running import ROOT, Run

RECORDED = ROOT / "docs/results/failing/hopper-failing-h200.landscape.xz"


def test_measured_effects_are_those_of_the_recorded_times(run: Run, tmp_path: Path) -> None:
    done = run("forecast_pairs.py", RECORDED, "--within=0", "--problems=1", "--pairs=1", "--out", tmp_path / "pairs")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "pairs.json").read_text())["biases"]
    by_code = {one.code_hash: one for one in reversed(read_landscape(RECORDED).evaluations) if one.ok}
    effects: dict[tuple[object, object], list[float]] = {}
    for one, other in itertools.combinations(by_code.values(), 2):
        ours, theirs = one.config.as_dict(), other.config.as_dict()
        if [name for name in ours if ours[name] != theirs[name]] == ["STAGES"]:
            assert one.timing is not None
            assert other.timing is not None
            first, second = sorted((one, other), key=lambda each: str(each.config.as_dict()["STAGES"]))
            values = first.config.as_dict()["STAGES"], second.config.as_dict()["STAGES"]
            assert first.timing is not None
            assert second.timing is not None
            effects.setdefault(values, []).append(math.log(second.timing.median_us / first.timing.median_us))
    stages = {
        (row["change"]["first"], row["change"]["second"]): (row["pairs"], row["measured"])
        for row in found
        if row["change"]["tunable"] == "STAGES"
    }
    assert len(stages) > 1
    assert stages.keys() == effects.keys()
    for values, (pairs, measured) in stages.items():
        assert pairs == len(effects[values])
        assert math.isclose(measured, math.expm1(median(effects[values])), rel_tol=1e-9, abs_tol=1e-12)
    for row in found:
        assert math.isclose(row["bias"], (1 + row["measured"]) / (1 + row["forecast"]) - 1, abs_tol=1e-9)
