"""Analytic counts of a config, compared with the emulator's counters for the executed kernel."""

from __future__ import annotations

import math
import pkgutil
from dataclasses import replace

import numpy as np
import pytest

from evoengine.costmodel import analytic_counts
from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.family_counts import counts_of
from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.costmodel.latency import FITTED, Work, demand
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, Problem, Value
from evoengine.space.data_dirs import data_dir
from evoengine.space.explicit_space import listed_space
from evoengine.space.loader import find_space
from evoengine.target import get_target

SPACE, TARGET = find_space("mma"), get_target("l4")
PLAIN: dict[str, Value] = {
    **{tunable.name: tunable.values[0] for tunable in SPACE.tunables},
    "WARPS_M": 2,
    "BLOCK_N": 32,
    "EXP_WITH_PV": False,
    "PEEL_FIRST": False,
    "MERGE": "rows",
    "LDMATRIX_BATCH": 1,
}
CAUSAL = Problem(1, 2, 128, 64, causal=True)
CASES = [
    ({}, Problem(1, 2, 128, 64)),
    ({"WARPS_N": 2, "M_ATOMS": 2, "EXP_WITH_PV": True, "ROW_SUM": "tensor"}, Problem(1, 2, 128, 64)),
    ({"WARPS_M": 1, "WARPS_N": 4, "Q_LOCATION": "shared", "PEEL_FIRST": True}, CAUSAL),
    ({"WARPS_M": 1, "WARPS_N": 2, "TILE_ORDER": "longest_first"}, CAUSAL),
    ({"Q_LOCATION": "registers", "SPLITS": 2, "BLOCK_N": 16}, Problem(1, 2, 64, 128)),
]


def config(changes: dict[str, Value]) -> Config:
    return SPACE.config(PLAIN | changes)


@pytest.mark.parametrize(("changes", "problem"), CASES)
@pytest.mark.every(3)
def test_counts_approximate_the_executed_kernel(changes: dict[str, Value], problem: Problem) -> None:
    which = config(changes)
    source = TemplateLibrary(data_dir("templates")).load("mma").render(which, problem, SPACE, TARGET)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))
    step = EmulatorDevice(TARGET).load(kernel).counted_steps(problem)[0]
    ran, expected = demand(step.report, step.resources, TARGET), AnalyticForecast(SPACE, problem, TARGET).demand(which)
    assert (expected.ctas, expected.warps_per_cta) == (ran.ctas, ran.warps_per_cta)
    assert expected.loop.tensor == pytest.approx(ran.loop.tensor)
    assert expected.busiest_cta == pytest.approx(ran.busiest_cta)
    assert expected.busiest_warp == pytest.approx(ran.busiest_warp)
    assert expected.longest_first == ran.longest_first == (which["TILE_ORDER"] == "longest_first")
    whole, counted = (_whole(one.loop, one.edges) for one in (expected, ran))
    assert whole.phases == pytest.approx(counted.phases, rel=0.25)
    assert expected.loop.mufu == pytest.approx(counted.mufu, rel=0.25) or whole.exchanges
    assert whole.shared == pytest.approx(counted.shared, rel=0.35)
    assert whole.issue == pytest.approx(counted.issue, rel=0.6)
    assert whole.exchanges == counted.exchanges


@pytest.mark.parametrize("head_dim", [72, 80, 96, 160])
@pytest.mark.every(3)
def test_copies_of_rows_that_do_not_divide_the_threads_are_counted(head_dim: int) -> None:
    """Some threads of a key group idle then, and each copy computes its place in the swizzle."""
    which, problem = config({"BLOCK_N": 64}), Problem(1, 1, 512, head_dim)
    source = TemplateLibrary(data_dir("templates")).load("mma").render(which, problem, SPACE, TARGET)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))
    step = EmulatorDevice(TARGET).load(kernel).counted_steps(problem)[0]
    ran = demand(step.report, step.resources, TARGET).loop.issue
    assert AnalyticForecast(SPACE, problem, TARGET).demand(which).loop.issue == pytest.approx(ran, rel=0.15)


@pytest.mark.parametrize(("place", "waits"), [("direct", 1), ("registers", 1), ("shared", 1), ("shares_k", 2)])
@pytest.mark.every(3)
def test_queries_are_waited_for_wherever_they_lie(place: str, waits: int) -> None:
    """Loads to registers are waited for as copies are at a barrier."""
    which, problem = config({"Q_LOCATION": place}), Problem(1, 1, 32, 64)
    source = TemplateLibrary(data_dir("templates")).load("mma").render(which, problem, SPACE, TARGET)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))
    step = EmulatorDevice(TARGET).load(kernel).counted_steps(problem)[0]
    assert demand(step.report, step.resources, TARGET).edges.phases == waits
    assert AnalyticForecast(SPACE, problem, TARGET).demand(which).edges.phases == waits


def test_a_folded_order_balances_the_two_rounds_of_a_persistent_grid() -> None:
    problem, busiest = Problem(1, TARGET.sms // 2, 128, 64, causal=True), {}
    for order in ("natural", "folded"):
        which = config({"PERSISTENT": True, "TILE_ORDER": order, "BLOCK_N": 16})
        source = TemplateLibrary(data_dir("templates")).load("mma").render(which, problem, SPACE, TARGET)
        kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))
        step = EmulatorDevice(TARGET, representative_flops=1 << 62).load(kernel).counted_steps(problem)[0]
        ran = demand(step.report, step.resources, TARGET)
        busiest[order] = AnalyticForecast(SPACE, problem, TARGET).demand(which).busiest_cta
        assert ran.ctas == TARGET.sms
        assert busiest[order] == pytest.approx(ran.busiest_cta, rel=0.1)
    assert busiest["folded"] == pytest.approx(1)
    assert busiest["natural"] > 1.1


@pytest.mark.parametrize("problem", [Problem(1, 2, 128, 64), CAUSAL])
@pytest.mark.parametrize("family", ["scalar", "wmma"])
@pytest.mark.every(3)
def test_counts_of_other_families_approximate_the_executed_kernel(family: str, problem: Problem) -> None:
    space = find_space(family)
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}
    which = space.build(problem, TARGET).repair(first | dict(space.starts[0].values))
    source = TemplateLibrary(data_dir("templates")).load(family).render(which, problem, space, TARGET)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))
    step = EmulatorDevice(TARGET).load(kernel).counted_steps(problem)[0]
    ran, expected = demand(step.report, step.resources, TARGET), AnalyticForecast(space, problem, TARGET).demand(which)
    assert (expected.ctas, expected.warps_per_cta) == (ran.ctas, ran.warps_per_cta)
    assert expected.busiest_cta == pytest.approx(ran.busiest_cta, rel=0.4)
    assert expected.loop.tensor == pytest.approx(ran.loop.tensor)
    whole, counted = (_whole(one.loop, one.edges) for one in (expected, ran))
    assert whole.phases == pytest.approx(counted.phases, rel=0.35)
    assert whole.mufu == pytest.approx(counted.mufu, rel=0.35)
    assert whole.shared == pytest.approx(counted.shared, rel=1.0), "the emulator counts no bank conflicts here"
    assert whole.issue == pytest.approx(counted.issue, rel=0.5)


def test_a_window_bounds_the_keys_of_the_busiest_cta() -> None:
    space = find_space("scalar")
    busiest = {}
    for left in (None, 15, 10_000):
        problem = Problem(1, 2, 512, 64, causal=True, window_left=left)
        which = space.build(problem, TARGET).starts()[0]
        busiest[left] = float(np.ravel(AnalyticForecast(space, problem, TARGET).demand(which).busiest_cta)[0])
    assert busiest[15] == 1, "every row sees at most one tile"
    assert busiest[None] == busiest[10_000] > 1.5, "the last row sees all keys"


def test_merging_splits_costs_time() -> None:
    target = get_target("h200")
    forecast = AnalyticForecast(SPACE, Problem(1, 8, 512, 64), target)
    turns = 64 * 16 / 128  # 64 rows with 16 threads each, 128 threads per CTA
    once = turns * FITTED.merge_wait
    for splits, registers, rounds in ((8, 96, 1), (12, 96, 2), (12, 0, 1), (32, 0, 1), (32, 160, 2)):
        merging: dict[str, Value] = {"WARPS_M": 4, "SPLITS": splits, "COMBINE": "last", "MAXRREGCOUNT": registers}
        found = forecast.demand(config(merging)).merge_clocks
        assert found == rounds * once, "as many splits as registers allow are loaded at a time"
    alone, apart = (forecast.us(config({"SPLITS": splits, "COMBINE": "kernel"})) for splits in (1, 2))
    assert apart > alone / 2 + target.launch_overhead_us, "a second launch"


def test_a_config_without_a_newer_tunable_takes_its_first_value() -> None:
    forecast = AnalyticForecast(SPACE, Problem(1, 8, 512, 64), TARGET)
    whole = config({})
    older = Config.of("mma", {name: value for name, value in whole.values if name != "UNROLL"})
    assert forecast.us(older) == forecast.us(whole)


def _whole(loop: Work, edges: Work) -> Work:
    return Work(
        phases=loop.phases + edges.phases,
        mufu=loop.mufu + edges.mufu,
        shared=loop.shared + edges.shared,
        issue=loop.issue + edges.issue,
        exchanges=loop.exchanges + edges.exchanges,
    )


def test_good_configs_rank_before_bad_ones() -> None:
    target = get_target("h200")
    forecast = AnalyticForecast(SPACE, Problem(1, 8, 512, 64), target)
    good: dict[str, Value] = {"WARPS_M": 2, "WARPS_N": 4, "BLOCK_N": 64, "Q_LOCATION": "registers", "EXP_WITH_PV": True}
    best = forecast.us(config(good))
    assert best < forecast.us(config(good | {"EXP_WITH_PV": False}))
    assert best < forecast.us(config(good | {"WARPS_N": 1}))
    assert best < forecast.us(config(good | {"SMEM_LAYOUT": "padded", "PAD_HALVES": 0})), "bank conflicts"
    assert best < forecast.us(config(good | {"MAXRREGCOUNT": 80, "BLOCK_N": 128})), "spills"
    assert forecast.us(config(good | {"SPLITS": 4, "COMBINE": "kernel"})) > 2 * target.launch_overhead_us
    assert forecast.us(config({"BLOCK_N": 128, "STAGES_K": 4, "STAGES_V": 4, "WARPS_N": 4})) == math.inf, "no CTA fits"


def test_a_mask_saves_work_and_more_rows_cost_time() -> None:
    which = config({})
    plain, causal, twice = (
        AnalyticForecast(SPACE, problem, TARGET).us(which)
        for problem in (Problem(1, 8, 2048, 64), Problem(1, 8, 2048, 64, causal=True), Problem(2, 8, 2048, 64))
    )
    window = AnalyticForecast(SPACE, replace(Problem(1, 8, 2048, 64), window_left=128, window_right=0), TARGET).us(
        which
    )
    assert window < causal < plain < twice


def test_it_covers_families_with_counts_and_complete_spaces() -> None:
    problem = Problem(1, 8, 512, 64)
    assert AnalyticForecast.covers(SPACE, problem)
    assert AnalyticForecast.covers(find_space("scalar"), problem)
    assert not AnalyticForecast.covers(replace(find_space("scalar"), family="own"), problem)
    assert not AnalyticForecast.covers(SPACE, Problem(2, 4, 64, 64, lengths_q=(64, 10)))
    assert not AnalyticForecast.covers(SPACE, Problem(1, 2, 2_000_000_000, 64)), "its tiles would take gigabytes"
    less = tuple(tunable for tunable in SPACE.tunables if tunable.name != "SPLITS")
    assert not AnalyticForecast.covers(replace(SPACE, tunables=less), problem), "a modified space"


@pytest.mark.parametrize("family", ["mma", "scalar", "wmma"])
def test_a_prediction_does_not_depend_on_the_batch_it_is_made_in(family: str) -> None:
    space, problem = find_space(family), Problem(2, 8, 300, 64, kv_heads=2, causal=True)
    valid = space.build(problem, TARGET, overrides={space.tunables[0].name: space.tunables[0].values[1:]})
    rows = valid.sample_rows(np.random.default_rng(0), 200)
    shared = AnalyticForecast(space, problem, TARGET)
    expected_us = shared.us_of_rows(valid, rows).tolist()
    assert len(set(expected_us)) > 100
    assert shared.us_of_rows(valid, rows[150:]).tolist() == expected_us[150:]
    assert shared.us_of_rows(valid, rows[:0]).tolist() == []
    configs = [valid.config_of(row) for row in rows]
    assert shared.us_of(configs).tolist() == expected_us
    assert [AnalyticForecast(space, problem, TARGET).us(config) for config in configs[:20]] == expected_us[:20]


def test_rows_of_a_space_without_a_newer_tunable_take_its_first_value() -> None:
    problem = Problem(1, 8, 512, 64)
    older = replace(SPACE, tunables=tuple(one for one in SPACE.tunables if one.name != "LDMATRIX_BATCH"), derived=())
    listed = listed_space(replace(older, constraints=()), {}, np.zeros((1, len(older.tunables)), np.uint8))
    forecast, first = AnalyticForecast(SPACE, problem, TARGET), {one.name: one.values[0] for one in SPACE.tunables}
    assert forecast.us_of_rows(listed, listed.all_rows()).tolist() == [forecast.us(SPACE.config(first))]


def test_an_unknown_value_is_rejected() -> None:
    with pytest.raises(UsageError, match="BLOCK_N cannot be 17"):
        AnalyticForecast(SPACE, Problem(1, 2, 128, 64), TARGET).us(Config.of("mma", PLAIN | {"BLOCK_N": 17}))
    with pytest.raises(UsageError, match="EXP_WITH_PV cannot be 1"):
        AnalyticForecast(SPACE, Problem(1, 2, 128, 64), TARGET).us(Config.of("mma", PLAIN | {"EXP_WITH_PV": 1}))


def test_counts_are_found_by_the_name_of_a_family() -> None:
    modules = {module.name for module in pkgutil.iter_modules(analytic_counts.__path__)}
    assert modules == {"mma", "scalar", "wmma"}
    for family in modules:
        assert counts_of(family) is not None
    for family in ("wgmma", "no_such_family", "not-an-identifier", "mma.py"):
        assert counts_of(family) is None
