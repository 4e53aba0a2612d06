"""Predictions of the simulated families ``hopper`` and ``wgmma``: from the config alone and of compiled kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.costmodel.simulated_kernel import covers, one_piece
from evoengine.errors import LaunchError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import median_us
from evoengine.model import Config, Problem, Value
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.statistics import rank_correlation
from evoengine.target import get_target

H200 = get_target("h200")
FAMILIES = ("hopper", "wgmma")
SAMPLES = Path(__file__).resolve().parents[2] / "docs" / "results" / "samples"
LONG = Problem(4, 16, 2048, 64)
PROBLEMS = [
    Problem(2, 8, 300, 96, kv_heads=2, causal=True),
    Problem(1, 2, 1000, 64, window_left=200, window_right=0),
    Problem(1, 2, 700, 64, seq_kv=300, causal=True),  # rows that see no key
    Problem(1, 4, 64, 128, seq_kv=3000, softcap=30.0),
]


def start(family: str, name: str, problem: Problem, **changes: Value) -> Config:
    space = find_space(family)
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}
    chosen = next(start for start in space.starts if start.name == name)
    return space.build(problem, H200).repair(first | dict(chosen.values) | changes)


def us(family: str, problem: Problem, config: Config) -> float:
    return AnalyticForecast(find_space(family), problem, H200).us(config)


def compiled(family: str, problem: Problem, config: Config) -> Kernel:
    source = TemplateLibrary(data_dir("templates")).load(family).render(config, problem, find_space(family), H200)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, H200.arch))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.every(3)
def test_every_config_has_a_time_that_does_not_depend_on_the_batch(family: str, problem: Problem) -> None:
    space = find_space(family)
    valid = space.build(problem, H200)
    rows = valid.sample_rows(np.random.default_rng(0), 25)
    forecast = AnalyticForecast(space, problem, H200)
    times = forecast.us_of_rows(valid, rows)
    assert np.isfinite(times).all()
    assert times.min() > H200.launch_overhead_us
    assert [AnalyticForecast(space, problem, H200).us(valid.config_of(row)) for row in rows[20:]] == times[20:].tolist()
    assert not forecast.is_quick


def test_packed_sequences_are_not_covered() -> None:
    for family in FAMILIES:
        assert not AnalyticForecast.covers(find_space(family), Problem(2, 4, 64, 64, lengths_q=(64, 10)))


@pytest.mark.parametrize(("family", "name"), [("hopper", "alone"), ("wgmma", "pair")])
def test_times_follow_the_work(family: str, name: str) -> None:
    full, causal, twice, wide = (
        us(family, problem, start(family, name, problem))
        for problem in (LONG, replace(LONG, causal=True), replace(LONG, batch=8), replace(LONG, head_dim=128))
    )
    assert 0.4 * full < causal < 0.75 * full
    assert twice == pytest.approx(2 * full, rel=0.1)
    assert full < wide
    floor = LONG.flops / (H200.tensor_flops_per_clk_per_sm * H200.sms * H200.clock_mhz)
    assert full > floor


def test_what_the_design_of_hopper_is_for_saves_time() -> None:
    wide = replace(LONG, head_dim=128)
    pair = us("hopper", wide, start("hopper", "pair", wide))
    assert pair < us("hopper", wide, start("hopper", "pair", wide, OVERLAP=False))
    assert pair < us("hopper", wide, start("hopper", "pair", wide, STAGES=1))
    assert pair < us("hopper", wide, start("hopper", "pair", wide, CONSUMERS=1))
    causal = replace(wide, causal=True)
    dynamic, static = (
        us("hopper", causal, start("hopper", "pair", causal, SCHEDULE=schedule)) for schedule in ("dynamic", "static")
    )
    assert dynamic < static, "the next piece is loaded while the last one is computed"


@pytest.mark.parametrize(
    ("sample", "least"), [("4x16x2048x128-hopper", 0.9), ("4x16x2048x64c-hopper", 0.9), ("16x12x197x64-hopper", 0.9)]
)
def test_forecasts_rank_like_measurements_on_problems_that_were_not_fitted(sample: str, least: float) -> None:
    landscape = read_landscape(SAMPLES / f"{sample}-h200.landscape.xz")
    [family] = landscape.families
    assert landscape.problem is not None
    measured = [one for one in landscape.evaluations if one.ok]
    forecast = AnalyticForecast(find_space(family.name), landscape.problem, H200)
    expected, times = forecast.us_of([one.config for one in measured]), np.array([median_us(one) for one in measured])
    correlation = rank_correlation(expected, times)
    assert correlation is not None
    assert correlation >= least
    assert np.median(np.abs(expected / times - 1)) < 0.15


@pytest.mark.parametrize("family", ["mma", "hopper"])
def test_kernels_that_wait_for_dram_take_as_long_as_reading_does(family: str) -> None:
    landscape = read_landscape(SAMPLES / "8x32k8x1x128kv4096b-all-h200.landscape.xz")
    assert landscape.problem is not None
    forecast = AnalyticForecast(find_space(family), landscape.problem, H200)
    measured = [one for one in landscape.evaluations if one.ok and one.config.family == family]
    configs = [one.config for one in measured]
    resources = [one.resources for one in measured if one.resources is not None]
    waits = forecast.waits_for_dram(configs, resources)
    assert waits.sum() >= 5
    ratios = forecast.us_of(configs, resources)[waits] / np.array([median_us(one) for one in measured])[waits]
    assert np.median(np.abs(ratios - 1)) < 0.15
    assert ratios.max() < 1.05, "nothing reads faster"


@pytest.mark.parametrize("family", ["mma", "hopper"])
def test_kernels_that_wait_for_dram_are_ordered_by_their_other_work(family: str) -> None:
    landscape = read_landscape(SAMPLES / "32x32x1x128-kv8-skv700-bf16-near-h200.landscape.xz")
    assert landscape.problem is not None
    forecast = AnalyticForecast(find_space(family), landscape.problem, replace(H200, dram_share=None))
    measured = [one for one in landscape.evaluations if one.ok and one.config.family == family]
    configs = [one.config for one in measured]
    resources = [one.resources for one in measured if one.resources is not None]
    waits = forecast.waits_for_dram(configs, resources)
    assert waits.sum() >= 5
    times = np.array([median_us(one) for one in measured])
    correlation = rank_correlation(forecast.us_of(configs, resources)[waits], times[waits])
    assert correlation is not None, "the lower bound is the same for all of them"
    assert correlation > 0.3


def test_dram_is_only_a_lower_bound_where_its_rate_was_not_measured() -> None:
    problem = Problem(64, 32, 1, 128, kv_heads=8, seq_kv=4096)
    config = start("hopper", "decode_whole", problem)
    unknown = replace(H200, dram_share=None)
    least_us = problem.min_bytes / H200.dram_gbps / 1e3
    found = [AnalyticForecast(find_space("hopper"), problem, target).us(config) for target in (unknown, H200)]
    assert least_us <= found[0] < least_us + 2
    assert least_us / 0.93 < found[1] < least_us / 0.93 + 6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.every(2)
def test_a_compiled_kernel_is_predicted_from_one_piece_of_work(family: str) -> None:
    config = start(family, "pair", LONG)
    kernel = compiled(family, LONG, config)
    loaded = EmulatorDevice(H200).load(kernel)
    prediction = loaded.predict(LONG)
    assert prediction.us == pytest.approx(us(family, LONG, config), rel=0.05)
    assert prediction.terms["correction"] != 0
    assert prediction.method == "model-v18"
    assert prediction.terms["tensor"] + prediction.terms["issue"] > 0.5 * prediction.us
    assert loaded.executed(LONG) == 0, "the problem is not executed"
    part = one_piece(LONG, dict(kernel.source.launch.names))
    assert loaded.executed(part) > 0
    assert part.flops < LONG.flops / 5_000


def test_a_kernel_with_other_instructions_has_another_time() -> None:
    kernel = compiled("wgmma", LONG, start("wgmma", "pair", LONG))
    text = kernel.source.text
    entry = "    warpgroup_fence();\n"
    assert entry in text
    slow = (
        '    { float x = s_q; for (int i = 0; i < 3000; ++i) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); }\n'
    )
    place = text.index(entry, text.index("start_scores("))
    source = replace(kernel.source, text=text[:place] + slow + text[place:])
    changed = Kernel(source, Compiler(default_cache_dir()).compile(source, H200.arch))
    before, after = (EmulatorDevice(H200).load(one).predict(LONG).us for one in (kernel, changed))
    assert after > 2 * before


def test_only_the_architecture_of_the_recordings_is_corrected() -> None:
    space, problem = find_space("mma"), Problem(1, 2, 128, 64)
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}
    times = []
    for target in (H200, H200.compiled_for("sm_89"), get_target("l4")):
        config = space.build(problem, target).repair(first)
        source = TemplateLibrary(data_dir("templates")).load("mma").render(config, problem, space, target)
        kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))
        assert not covers(kernel, problem)
        times.append(EmulatorDevice(target).load(kernel).predict(problem))
    assert [one.method for one in times] == ["model-v18", "model-v18", "model-v18"]
    corrected, other, ada = (one.terms for one in times)
    assert times[0].us - corrected["correction"] == pytest.approx(times[1].us)
    assert abs(corrected["correction"]) > 0.01 * times[1].us
    assert "correction" not in other.keys() | ada.keys()


def test_a_kernel_that_does_not_fit_is_a_launch_error() -> None:
    kernel = compiled("hopper", LONG, start("hopper", "pair", LONG))
    resources = replace(kernel.binary.resources, dynamic_smem_bytes=300_000)
    with pytest.raises(LaunchError, match="no CTA fits"):
        EmulatorDevice(H200).load(replace(kernel, binary=replace(kernel.binary, resources=resources))).predict(LONG)


def test_a_variant_is_predicted_by_the_model_of_its_family() -> None:
    """Otherwise times of two models would meet in one ranking."""
    space, config = find_space("hopper"), start("hopper", find_space("hopper").starts[0].name, LONG)
    variant = replace(space, family="hopper~1a2b3c4d")
    assert AnalyticForecast.covers(variant, LONG)
    us = AnalyticForecast(variant, LONG, H200).us(Config.of(variant.family, config.as_dict()))
    assert us == AnalyticForecast(space, LONG, H200).us(config)
    assert not AnalyticForecast.covers(replace(space, family="other~1a2b3c4d"), LONG)
