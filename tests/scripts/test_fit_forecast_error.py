"""``fit_forecast_error.py``: its trees predict as scikit-learn's do, and what it writes corrects predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor

from evoengine.costmodel.forecast_error import parse_error_models
from evoengine.landscape.file import read_landscape
from tests.scripts.running import ROOT, Run, load

NAMES = ("2x16x64x64", "16x12x50x64", "8x12x128x64", "4x12x197x64")
FILES = [ROOT / "docs/results/samples" / f"{name}-near-h200.landscape.xz" for name in NAMES]


def test_trees_predict_as_those_of_scikit_learn() -> None:
    script = load("fit_forecast_error")
    parts = [part for path in FILES for part in script.parts_of(read_landscape(path)) if part.family == "mma"]
    matrix, errors = np.vstack([part.matrix for part in parts]), np.concatenate([part.errors for part in parts])
    weights = np.concatenate(
        [
            (script.FAR_WEIGHT + (part.measured_us.min() / part.measured_us) ** script.NEARNESS)
            / np.sqrt(len(part.errors))
            for part in parts
        ]
    )
    theirs = GradientBoostingRegressor(**script.BOOSTING, random_state=0).fit(matrix, errors, sample_weight=weights)
    expected = theirs.predict(matrix)
    assert expected.std() > 0.03
    assert np.allclose(script.fit_trees(parts)(matrix), expected, rtol=0, atol=1e-9)


@pytest.mark.thorough
def test_the_written_coefficients_correct_predictions(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "error.json"
    done = run("fit_forecast_error.py", *FILES, "--out", out)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert document["fitted_on"]["mma"] == sorted(f"{name}-fp16" for name in NAMES)
    script, models = load("fit_forecast_error"), parse_error_models(document)
    for part in script.parts_of(read_landscape(FILES[1])):
        model = models.families[part.family]
        left = part.errors - model.correction(part.matrix)
        assert np.abs(left).mean() < 0.5 * np.abs(part.errors).mean()
        assert left.std() < 2 * model.own, "what trees of other problems leave is larger"
