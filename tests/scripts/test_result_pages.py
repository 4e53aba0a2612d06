"""The table of what the gate costs, from hand-made stages."""

from __future__ import annotations

import runpy
from pathlib import Path

from evoengine.model import Config, Evaluation, Status

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure" / "gate_cost.py"


def evaluation(serial: int, **seconds: float) -> Evaluation:
    return Evaluation(config=Config.of("any", {"SERIAL": serial}), status=Status.OK, stage_seconds=seconds)


def test_parity_and_recheck_are_added_candidate_by_candidate() -> None:
    rows = [evaluation(n, load=0.001, parity=0.010 + 0.001 * n, recheck=0.030 - 0.002 * n) for n in range(11)]
    rows.append(evaluation(11, parity=0.5))  # not checked again: the gate as a whole says nothing of it
    lines = runpy.run_path(str(SCRIPT))["table"](rows).splitlines()
    assert lines[2:] == [
        "| load | 11 | 1.0 | 1.0 | 1.0 |",
        "| parity | 12 | 15.5 | 500.0 | 500.0 |",
        "| recheck | 11 | 20.0 | 30.0 | 30.0 |",
        "| **gate: parity + recheck** | 11 | 35.0 | 40.0 | 40.0 |",
    ]
