"""``draw_problems.py``: the problems of a page can be drawn again, and none was used for a fit."""

from __future__ import annotations

import json

import pytest

from evoengine.costmodel.forecast_error import FILE
from tests.scripts.running import ROOT, Run


@pytest.mark.thorough
def test_the_problems_of_a_seed_were_not_fitted(run: Run) -> None:
    done = run("draw_problems.py", "--seed", 20261127, "--count", 9)
    assert done.returncode == 0, done.stderr
    keys = [line.split()[0] for line in done.stdout.splitlines()]
    page = json.loads((ROOT / "docs/results/foresight-in-turns-h200.json").read_text())
    assert sorted(keys) == [one["problem"] for one in page["problems"] if one["fresh"]]
    fitted = {key for keys in json.loads(FILE.read_text())["fitted_on"].values() for key in keys}
    assert fitted.isdisjoint(keys)
    assert "--kv-heads 1 --seq-kv 700" in done.stdout
