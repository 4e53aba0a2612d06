"""Descriptions of how a landscape was recorded."""

from __future__ import annotations

import re

import pytest

from evoengine.model import Config, Evaluation, Status
from evoengine.search.landscape_facts import describe_stages

CONFIG = Config.of("synthetic", {"TILE": 1})
CORRECT = Evaluation(CONFIG, Status.OK, stage_seconds={"compile": 1.0, "parity": 0.002, "bench": 0.5, "recheck": 0.004})
WRONG = Evaluation(CONFIG, Status.PARITY_FAILED, stage_seconds={"compile": 1.0, "parity": 0.002})
UNBUILT = Evaluation(CONFIG, Status.COMPILE_FAILED, stage_seconds={"compile": 1.0})


@pytest.mark.parametrize("order", [(CORRECT, WRONG, UNBUILT), (WRONG, UNBUILT, CORRECT)])
def test_stages_that_only_some_configs_reached_are_described(order: tuple[Evaluation, ...]) -> None:
    means = re.findall(r"([\d.]+) ms (\w+)", describe_stages(order))
    assert means == [("1000.0", "compile"), ("2.0", "parity"), ("250.0", "bench"), ("2.0", "recheck")]


def test_without_a_config_on_the_device_there_is_no_description() -> None:
    assert describe_stages([UNBUILT]) == ""
