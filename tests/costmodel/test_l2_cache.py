"""Bytes that L2 does not hold, against times on an H200."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.costmodel.l2_cache import MISS_CLOCKS, miss_clocks, missed_share
from evoengine.model import Config, Problem, Value
from evoengine.space.loader import find_space
from evoengine.target import get_target

H200 = get_target("h200")
CROSS = Problem(1, 20, 64, 64, seq_kv=1500)
ONE_COPY_US = (12.62, 13.13, 13.07, 13.53, 15.25, 19.42)
RING_US = (10.68, 10.70, 10.75, 10.83, 10.93, 11.50)
"""Times of two kernels of ``hopper`` on an H200 by the batch, 1 to 6, or 8 to 46 MiB: docs/results/l2-batches-h200."""


def predicted_us(stages: int, batch: int) -> float:
    """Forecast of a kernel with one or several copies under way."""
    space, problem = find_space("hopper"), replace(CROSS, batch=batch)
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}
    values: dict[str, Value] = {"BLOCK_N": 96, "CONSUMERS": 1, "STAGES": stages, "SCHEDULE": "static", "CTAS_PER_SM": 1}
    config = space.build(problem, H200).repair(first | values)
    assert config.as_dict()["STAGES"] == stages
    return AnalyticForecast(space, problem, H200).us(config)


def growth(times_us: tuple[float, ...] | list[float]) -> float:
    """Time of 46 MiB over that of 23 MiB."""
    return times_us[5] / times_us[2]


def test_a_kernel_with_one_copy_under_way_slows_down_where_l2_does_not_hold_its_keys() -> None:
    one, ring = ([predicted_us(stages, batch) for batch in range(1, 7)] for stages in (1, 6))
    assert one[:4] == pytest.approx(ONE_COPY_US[:4], rel=0.05), "all batches run at once, and 31 MiB stay in L2"
    assert growth(one) == pytest.approx(growth(ONE_COPY_US), rel=0.2)
    assert growth(ring) == pytest.approx(growth(RING_US), rel=0.1)


def test_bytes_are_held_up_to_a_share_of_l2() -> None:
    shares = [missed_share(round(part * H200.l2_bytes), H200) for part in (0.1, 0.6, 0.75, 0.9, 3.0)]
    assert shares == pytest.approx([0, 0, 0.5, 1, 1], abs=1e-6)
    assert missed_share(None, H200) == 0


def test_of_several_copies_of_a_key_one_is_missed() -> None:
    problem = Problem(8, 32, 1024, 128)
    keys = 8.0 * 32 * 1024
    assert miss_clocks(problem, H200, keys) == pytest.approx(MISS_CLOCKS)
    assert miss_clocks(problem, H200, np.array([keys, 8 * keys])).tolist() == pytest.approx(
        [MISS_CLOCKS, MISS_CLOCKS / 8]
    )
    assert miss_clocks(replace(problem, batch=1), H200, keys / 8) == 0, "17 MB stay in L2"


def test_single_stages_of_mma_wait_for_dram() -> None:
    space = find_space("mma")
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}

    def us(stages: int, batch: int) -> float:
        problem = replace(CROSS, batch=batch)
        values = {"WARPS_M": 4, "BLOCK_N": 64, "STAGES_K": stages, "STAGES_V": stages}
        return AnalyticForecast(space, problem, H200).us(Config.of("mma", first | values))

    assert us(1, 6) > 1.1 * us(1, 4)
    assert us(2, 6) < 1.1 * us(2, 4)
