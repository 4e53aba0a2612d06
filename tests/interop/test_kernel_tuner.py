"""Kernel Tuner's cache files, read and written, and T4 results; checked with the package itself if it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine.errors import LandscapeError, UsageError
from evoengine.interop.foreign_files import read_foreign
from evoengine.interop.kernel_tuner import cache_document
from evoengine.interop.t4 import t4_document
from evoengine.landscape.file import pack_landscape, read_landscape
from evoengine.model import Config, Status
from tests.landscape.making import RECORDED, config, toy

FOREIGN: dict[str, Any] = {
    "device_name": "NVIDIA A100",
    "kernel_name": "Convolution-2D",
    "problem_size": [4096, 4096],
    "tune_params_keys": ["block_size_x", "use_padding", "method"],
    "tune_params": {"block_size_x": [64, 16, 32], "use_padding": [True, False], "method": ["naive", "tiled"]},
    "objective": "time",
    "cache": {
        "16,True,naive": {
            "block_size_x": 16,
            "use_padding": True,
            "method": "naive",
            "time": 1.25,
            "times": [1.2, 1.3, 1.25],
            "compile_time": 320.0,
            "verification_time": 0,
            "benchmark_time": 2.5,
        },
        "32,False,tiled": {"block_size_x": 32, "use_padding": False, "method": "tiled", "time": 0.75},
        "64,False,tiled": {
            "block_size_x": 64,
            "use_padding": False,
            "method": "tiled",
            "time": "RuntimeFailedConfig",
            "__error__": "RuntimeFailedConfig",
        },
        "64,True,naive": {
            "block_size_x": 64,
            "use_padding": True,
            "method": "naive",
            "time": "CompilationFailedConfig",
        },
    },
}
"""Cache file as Kernel Tuner writes it, with the old and the new way to mark an error."""

needs_kernel_tuner = pytest.mark.skipif(
    importlib.util.find_spec("kernel_tuner") is None, reason="kernel_tuner is not installed"
)


@pytest.mark.parametrize("which", ["toy", "recorded"])
def test_round_trip(tmp_path: Path, which: str) -> None:
    landscape = toy() if which == "toy" else read_landscape(RECORDED)
    file = tmp_path / "cache.json"
    file.write_text(json.dumps(cache_document(landscape, landscape.families[0])))
    again = read_foreign(file, "kernel-tuner")
    assert dict(again.by_config) == dict(landscape.by_config)
    assert again.key == landscape.key


def test_cache_has_the_entries_that_kernel_tuner_reads() -> None:
    document = cache_document(toy(), toy().families[0])
    assert document["tune_params_keys"] == list(document["tune_params"]) == ["TILE", "LAYOUT", "UNROLL"]
    assert set(document["cache"]) == {
        "16,plain,False",
        "16,padded,True",
        "32,plain,False",
        "64,plain,False",
        "64,padded,True",
    }
    best = document["cache"]["16,padded,True"]
    assert best["time"] == pytest.approx(0.008)  # milliseconds
    assert best["compile_time"] == 500.0
    assert document["cache"]["64,plain,False"]["time"] == "CompilationFailedConfig"
    assert document["cache"]["64,padded,True"]["time"] == "RuntimeFailedConfig"


def test_configs_that_commas_make_alike_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("A;B;time_us\nx,y;z;1\nx;y,z;2\n")
    alike = read_foreign(file)
    with pytest.raises(UsageError, match="--format t4"):
        cache_document(alike, alike.families[0])
    assert len(t4_document(alike, alike.families[0])["results"]) == 2
    file.write_text("A;B;time_us\nx,y;z;1\nx;z;2\n")
    distinct = read_foreign(file)
    assert len(cache_document(distinct, distinct.families[0])["cache"]) == 2


def test_a_foreign_cache_becomes_a_landscape(tmp_path: Path) -> None:
    file = tmp_path / "cache.json"
    file.write_text(json.dumps(FOREIGN))
    landscape = read_foreign(file, "kernel-tuner")
    assert landscape.problem is None
    assert landscape.device.name == "NVIDIA A100"
    (family,) = landscape.families
    assert family.name == "convolution_2d"
    assert [tunable.kind for tunable in family.space.tunables] == ["ordinal", "boolean", "categorical"]
    assert family.space.tunables[0].values == (16, 32, 64)
    outcomes = {(e.config["block_size_x"], e.config["use_padding"]): e for e in landscape.evaluations}
    assert landscape.best.config["block_size_x"] == 32
    slow = outcomes[16, True]
    assert slow.timing is not None
    assert (slow.timing.low_us, slow.timing.median_us, slow.timing.high_us) == (1200.0, 1250.0, 1300.0)
    assert slow.stage_seconds == {"compile": 0.32, "bench": 0.0025}
    assert outcomes[64, False].status is Status.LAUNCH_FAILED
    assert outcomes[64, True].status is Status.COMPILE_FAILED
    packed = tmp_path / "foreign.landscape.xz"
    packed.write_bytes(pack_landscape(landscape))
    assert read_landscape(packed).key == landscape.key


def test_an_unfinished_cache_is_read_up_to_its_last_entry(tmp_path: Path) -> None:
    whole = json.dumps(FOREIGN, indent=0)
    torn = whole[: whole.rindex('"64,True,naive"')].rstrip()
    assert torn.endswith(",")
    file = tmp_path / "cache.json"
    file.write_text(torn)
    assert len(read_foreign(file, "kernel-tuner").evaluations) == 3


def test_a_table_of_more_columns_than_tunables_is_refused_by_its_header(tmp_path: Path) -> None:
    """The line below it, which is not one of the table, is not read."""
    file = tmp_path / "wide.csv"
    file.write_text(",".join(["time_us", "status", *(f"c{number}" for number in range(101))]) + "\n1,2\n")
    with pytest.raises(LandscapeError, match="line 1: has more than 102 columns"):
        read_foreign(file, "csv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": {}}, "cache: "),
        ({"objective": "GFLOP/s"}, "objective: is 'GFLOP/s'"),
        ({"device_name": 3}, "device_name: "),
        (
            {"tune_params": {**FOREIGN["tune_params"], "block_size_x": [0.5]}},
            r"cache\.16,True,naive\.block_size_x: is 16, which tune_params does not list",
        ),
        ({"tune_params": 3}, r"tune_params: "),
        ({"tune_params": {"block_size_x": [[16]]}}, r"tune_params\.block_size_x\[0\]: expected .*got a list"),
        ({"cache": {"8": {"block_size_x": [8]}}}, r"cache\.8\.block_size_x: is \[8\], which tune_params does not list"),
        ({"tune_params_keys": ["other"]}, r"tune_params\.other: is missing"),
        ({"cache": {"8": {"block_size_x": 8}}}, r"cache\.8\.block_size_x: is 8, which tune_params does not list"),
        ({"cache": {"8": []}}, "cache"),
        (
            {
                "tune_params": {**FOREIGN["tune_params"], "block_size_x": [1, 2]},
                "cache": {"True,True,naive": {**FOREIGN["cache"]["32,False,tiled"], "block_size_x": True}},
            },
            r"cache\.True,True,naive\.block_size_x: is True, which tune_params does not list",
        ),
        ({"evoengine": {}}, "evoengine.*space_hash"),
        (
            {"cache": {"a": {**FOREIGN["cache"]["32,False,tiled"], "time": float("nan")}}},
            r"cache\.a\.time: ",
        ),
        (
            {"cache": {"a": {**FOREIGN["cache"]["32,False,tiled"], "time": -1}}},
            r"cache\.a\.time: .*>= 0",
        ),
        (
            {"cache": dict.fromkeys(("32,False,tiled", "32.0, false,tiled"), FOREIGN["cache"]["32,False,tiled"])},
            "cache.32.0, false,tiled: is the config of cache.32,False,tiled: each may occur once",
        ),
        (
            {"cache": {"16,False,tiled": FOREIGN["cache"]["32,False,tiled"]}},
            "cache.16,False,tiled: contradicts its values, 32,False,tiled",
        ),
        (
            {"cache": {"32,True,tiled": FOREIGN["cache"]["32,False,tiled"]}},
            "cache.32,True,tiled: contradicts its values",
        ),
        ({"cache": {"32,False": FOREIGN["cache"]["32,False,tiled"]}}, "cache.32,False: contradicts its values"),
        (
            {"tune_params_keys": [*FOREIGN["tune_params_keys"], "method"]},
            "tune_params_keys: names a tunable twice",
        ),
        (
            {"tune_params": {**FOREIGN["tune_params"], "block_size_x": [64, 16, 32, 16]}},
            "tune_params.block_size_x: lists a value twice",
        ),
    ],
)
def test_an_invalid_entry_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "cache.json"
    file.write_text(json.dumps({**FOREIGN, **change}))
    with pytest.raises(LandscapeError, match=message):
        read_foreign(file, "kernel-tuner")


def test_an_entry_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """The second one would replace the first."""
    file = tmp_path / "cache.json"
    file.write_text(json.dumps(FOREIGN).replace('"64,False,tiled"', '"32,False,tiled"'))
    with pytest.raises(LandscapeError, match="'32,False,tiled'"):
        read_foreign(file, "kernel-tuner")


def test_a_key_of_its_own_file_that_contradicts_the_config_is_refused(tmp_path: Path) -> None:
    landscape, file = toy(), tmp_path / "cache.json"
    document = cache_document(landscape, landscape.families[0])
    first, second, *_ = document["cache"]
    document["cache"][first], document["cache"][second] = document["cache"][second], document["cache"][first]
    file.write_text(json.dumps(document))
    with pytest.raises(LandscapeError, match=f"cache.{first}: contradicts its values, {second}"):
        read_foreign(file, "kernel-tuner")


def test_t4_results_state_each_failure() -> None:
    landscape = toy()
    wrong = replace(landscape.evaluations[3], status=Status.PARITY_FAILED)
    landscape = toy([*landscape.evaluations[:3], wrong, landscape.evaluations[4]])
    document = t4_document(landscape, landscape.families[0])
    assert document["schema_version"] == "1.0.0"
    results = {tuple(result["configuration"].values()): result for result in document["results"]}
    assert len(results) == 5
    fast = results["padded", 16, True]
    assert (fast["invalidity"], fast["correctness"], fast["objectives"]) == ("correct", 1, ["time"])
    assert fast["times"]["compilation_time"] == 500.0
    assert {"name": "time", "value": pytest.approx(0.008), "unit": "ms"} in fast["measurements"]
    assert (results["plain", 64, False]["invalidity"], results["plain", 64, False]["correctness"]) == ("correctness", 0)
    assert results["padded", 64, True]["invalidity"] == "timeout"


@needs_kernel_tuner
@pytest.mark.filterwarnings("ignore")  # warnings of the package itself
def test_kernel_tuner_finds_the_optimum_in_its_simulation(tmp_path: Path) -> None:
    tune_cache: Any = importlib.import_module("kernel_tuner.interface").tune_cache
    landscape = toy()
    file = tmp_path / "cache.json"
    file.write_text(json.dumps(cache_document(landscape, landscape.families[0]), indent=0))
    results, environment = tune_cache(str(file), lang="CUDA", strategy="brute_force", quiet=True)
    assert len(results) == 3  # failed configs are left out
    assert environment["device_name"] == "NVIDIA H200"
    best = environment["best_config"]
    assert best["time"] == pytest.approx(0.008)
    assert config(best["TILE"], best["LAYOUT"], best["UNROLL"]) in {
        e.config for e in landscape.evaluations if e.value_us == 8.0
    }


@needs_kernel_tuner
@pytest.mark.filterwarnings("ignore")  # warnings of the package itself
def test_kernel_tuners_schema_accepts_t4_results() -> None:
    _, schema = importlib.import_module("kernel_tuner.file_utils").output_file_schema("results")
    landscape = read_landscape(RECORDED)
    validator = importlib.import_module("jsonschema").validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(t4_document(landscape, landscape.families[0]))] == []


@needs_kernel_tuner
@pytest.mark.filterwarnings("ignore")  # warnings of the package itself
@pytest.mark.parametrize("strategy", ["random_sample", "diff_evo", "bayes_opt"])
def test_kernel_tuners_strategies_run_on_recorded_configs_only(
    monkeypatch: pytest.MonkeyPatch, repo_root: Path, strategy: str
) -> None:
    """The last two draw from a Latin hypercube, to which Kernel Tuner passes no seed.

    After its first 20 configs, bayes_opt chooses between equal predictions by rounding errors, which vary.
    """
    monkeypatch.syspath_prepend(repo_root / "scripts" / "measure")
    landscape = read_landscape(RECORDED)
    space = importlib.import_module("strategies.kernel_tuner_runs").SimulatedSpace(landscape)
    walk = space.run(strategy, 1, 40, "own")
    assert space.run(strategy, 1, 40, "own")[:20] == walk[:20]
    assert space.run(strategy, 2, 40, "own")[:20] != walk[:20]
    assert set(space.run(strategy, 1, 216, "own")) <= set(space.run("random_sample", 1, 216, "shuffled-1"))
    space.close()
    assert len(walk) == len(set(walk)) == 40
    family = landscape.families[0]
    names = [tunable.name for tunable in family.space.tunables]
    walked = [Config.of(family.name, dict(zip(names, values, strict=True))) for values in walk]
    assert all(one in landscape.spaces for one in walked)
