"""``landscape import`` on parts of public files of each format, and on files that must be refused.

The truth is the file itself, read by ``json`` alone, and that two tuners' files of one recording must agree.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape
from evoengine.model import Status
from tests.cli.calling import Evo

PUBLIC = Path(__file__).parent / "public"
CACHE = PUBLIC / "convolution_milo-A100.json"
T4 = PUBLIC / "convolution_milo-A100_T4.json"
KTT = PUBLIC / "KTPnpolyOutput_3090.json"
PNPOLY = PUBLIC / "pnpoly-RTX_3090.json"

Import = Callable[..., Landscape]
Outcomes = dict[frozenset[tuple[str, object]], tuple[Status, float | None]]


@pytest.fixture
def imported(quick_evo: Evo, tmp_path: Path) -> Import:
    """``imported(file, "--format", "t4")`` returns the landscape that the command line writes."""

    def call(file: Path, *options: str) -> Landscape:
        done = quick_evo("landscape", "import", str(file), "-o", "theirs.landscape.xz", "--force", *options)
        assert done.code == 0, done.err
        return read_landscape(tmp_path / "theirs.landscape.xz")

    return call


def outcomes(landscape: Landscape, names: Callable[[str], str] = str) -> Outcomes:
    """Returns status and time, in microseconds to five digits, by config."""
    return {
        frozenset((names(name), value) for name, value in one.config.values): (one.status, one.value_us)
        for one in landscape.evaluations
    }


def test_a_cache_keeps_its_configs_and_which_failed(imported: Import) -> None:
    document = json.loads(CACHE.read_text())
    failures = {"CompilationFailedConfig": Status.COMPILE_FAILED, "RuntimeFailedConfig": Status.LAUNCH_FAILED}
    wanted = {}
    for entry in document["cache"].values():
        failure, time = failures.get(entry["time"]), entry["time"]
        outcome = (failure, None) if failure else (Status.OK, float(f"{1e3 * time:.5g}"))
        wanted[frozenset((name, entry[name]) for name in document["tune_params_keys"])] = outcome
    assert {status for status, _ in wanted.values()} == {Status.OK, Status.COMPILE_FAILED, Status.LAUNCH_FAILED}
    landscape = imported(CACHE)
    assert outcomes(landscape) == wanted
    assert landscape.spaces.size == landscape.families[0].valid_configs == len(wanted)  # no other config is valid
    assert landscape.device.name == document["device_name"]


def test_two_formats_of_one_recording_agree(imported: Import) -> None:
    assert outcomes(imported(T4)) == outcomes(imported(CACHE))
    theirs = outcomes(imported(KTT), str.lower)
    named = {frozenset(pair for pair in config if pair[0] != "vertices"): one for config, one in theirs.items()}
    assert named == outcomes(imported(PNPOLY))


def test_units_of_time_are_converted(imported: Import, tmp_path: Path) -> None:
    document, file = json.loads(KTT.read_text()), tmp_path / "ktt.json"
    for result in document["Results"]:
        result["TotalDuration"] *= 1000
    document["Metadata"]["TimeUnit"] = "Nanoseconds"
    file.write_text(json.dumps(document))
    assert outcomes(imported(file)) == outcomes(imported(KTT))
    compiled = sorted(result["times"]["compilation"] for result in json.loads(T4.read_text())["results"])
    found = sorted(one.stage_seconds["compile"] for one in imported(T4).evaluations if "compile" in one.stage_seconds)
    assert [1e3 * seconds for seconds in found] == pytest.approx([ms for ms in compiled if ms], rel=0.01)


def test_dialects_of_t4(imported: Import, tmp_path: Path) -> None:
    document = json.loads(T4.read_text())
    document["metadata"] = {"timeunit": "seconds", "device": "NVIDIA A100", "predicted": True}
    for result in document["results"]:
        result["times"] = {f"{name}_time": 2.0 for name in ("compilation", "validation", "benchmark")}
        for one in result["measurements"]:
            one["unit"] = "milliseconds"
        if result["invalidity"] != "correct":
            result |= {"invalidity": "timeout", "measurements": []}
    file = tmp_path / "old.json"
    file.write_text(json.dumps(document))
    landscape = imported(file)
    timed = outcomes(imported(T4))
    assert {config: us for config, (_, us) in outcomes(landscape).items()} == {c: us for c, (_, us) in timed.items()}
    assert landscape.counts == {Status.OK: 6, Status.TIMEOUT: 3}
    assert landscape.device.predicted
    assert landscape.best.stage_seconds == {"compile": 2.0, "parity": 2.0, "bench": 2.0}


@pytest.mark.parametrize("pack", ["gz", "xz", "zip"])
def test_compressed_files_are_the_same_landscape(imported: Import, tmp_path: Path, pack: str) -> None:
    file, content = tmp_path / f"a b.json.{pack}", CACHE.read_bytes()
    if pack == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("folder")
            archive.writestr("folder/results.json", content)
    else:
        file.write_bytes(gzip.compress(content) if pack == "gz" else lzma.compress(content))
    assert imported(file).key == imported(CACHE).key


@pytest.mark.parametrize("status", [False, True])
def test_a_table_is_read(imported: Import, tmp_path: Path, status: bool) -> None:
    wanted, file = imported(CACHE), tmp_path / "table.csv"
    names = [tunable.name for tunable in wanted.families[0].space.tunables]
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow([*names, "time_us", *(["status"] if status else [])])
        for one in wanted.evaluations:
            time = one.value_us if one.ok or not status else "nan"
            cells = [time if one.ok or status else one.status.value]
            table.writerow([*(one.config[name] for name in names), *cells, *([one.status.value] if status else [])])
    assert outcomes(imported(file)) == outcomes(wanted)
    file.write_text("SIZE;METHOD;RATE;duration (ms)\n1;a;0.5;2\n2;b;1;3.5\n4;b;1;\n")
    landscape = imported(file, "--format", "csv")
    kinds = {tunable.name: (tunable.kind, tunable.values) for tunable in landscape.families[0].space.tunables}
    assert kinds == {
        "METHOD": ("categorical", ("a", "b")),
        "RATE": ("categorical", ("0.5", "1.0")),
        "SIZE": ("ordinal", (1, 2, 4)),
    }
    assert sorted(e.value_us or 0 for e in landscape.evaluations) == [0, 2000, 3500]


def test_whole_numbers_of_64_bits_are_exact_and_longer_ones_are_texts(imported: Import, tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    lines = ["9007199254740992,16.0,1e300,1", f"9007199254740993,32,16,{2**64 + 1}", f"-{2**63 - 1},48,32,{2**64 + 2}"]
    file.write_text("LONG,SIZE,HUGE,BEYOND,time_us\n" + "".join(f"{line},1\n" for line in lines))
    kinds = {one.name: (one.kind, one.values) for one in imported(file).families[0].space.tunables}
    assert kinds == {
        "LONG": ("ordinal", (-(2**63) + 1, 2**53, 2**53 + 1)),
        "SIZE": ("ordinal", (16, 32, 48)),
        "HUGE": ("categorical", ("1e+300", "16.0", "32.0")),
        "BEYOND": ("categorical", ("1.0", str(2**64 + 1), str(2**64 + 2))),
    }


WORDS = {
    "correct": Status.OK,
    "ok": Status.OK,
    "constraints": Status.INVALID_CONFIG,
    "compile": Status.COMPILE_FAILED,
    "runtime": Status.LAUNCH_FAILED,
    "timeout": Status.TIMEOUT,
    "correctness": Status.PARITY_FAILED,
    "InvalidConfig": Status.INVALID_CONFIG,
    "CompilationFailedConfig": Status.COMPILE_FAILED,
    "RuntimeFailedConfig": Status.LAUNCH_FAILED,
    "ErrorConfig": Status.CRASHED,
    "DeviceLimitsExceeded": Status.RESOURCE_LIMIT,
    "CompilationFailed": Status.COMPILE_FAILED,
    "ComputationFailed": Status.LAUNCH_FAILED,
    "ValidationFailed": Status.PARITY_FAILED,
}
"""Statuses as T4, Kernel Tuner and KTT document them."""


def test_every_word_for_a_status_is_known(imported: Import, tmp_path: Path) -> None:
    file = tmp_path / "words.csv"
    file.write_text("SIZE,status,time_ms\n" + "".join(f"{n},{word},2\n" for n, word in enumerate(WORDS)))
    found = {one.config["SIZE"]: one.status for one in imported(file).evaluations}
    assert found == dict(enumerate(WORDS.values()))


def _t4(**changes: Any) -> str:
    document = json.loads(T4.read_text())
    document["results"][0] |= changes
    return json.dumps(document)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_t4(invalidity="lucky"), "results[0].invalidity: the status 'lucky' is unknown"),
        (_t4(configuration={"block_size_x": 16}), "results[1].block_size_y: is not a tunable of results[0]"),
        (_t4(configuration={"block_size_x": [1]}), "results[1].block_size_y"),
        (_t4(measurements=[{"name": "time", "value": -1, "unit": "ms"}]), "results[0].measurements[0].value: "),
        (_t4(measurements=[{"name": "time", "value": 0, "unit": "ms"}]), "results[0]: impossible time"),
        (_t4(measurements=[{"name": "time", "value": 1, "unit": "J"}]), "results[0].measurements[0].unit: is 'J'"),
        (_t4(objectives=["GFLOP/s"]), "results[0].measurements: lacks the objective"),
        (_t4(measurements=[], times={}), "results[0]: is correct but has no time"),
        (_t4(times={"runtimes": [1e400]}), "results[0].times.runtimes[0]: "),
        ('{"results": []}', "has no results"),
        ('{"results": ' + "[" * 100 + "]" * 100 + "}", "nested deeper than 64"),
        ('{"rows": []}', "none of the entries cache, results, Results"),
        ('{"results": [{"configuration": {"a\\u001b": 1}, "invalidity": "compile"}]}', "one that cannot be shown"),
        ("[1, 2]", "is not a JSON object"),
        ('{"Metadata": {"Device": "x", "TimeUnit": "Joules"}, "Results": []}', "Metadata.TimeUnit: "),
        ("a,b\n1,2\n", "line 1: has 0 columns of times"),
        ("a,time_us,time_ms\n1,2,3\n", "line 1: has 2 columns of times"),
        ("a,time_us\n1,2\n1,3\n", "line 3: is the config of line 2"),
        ("a,time_us\n1,fast\n", "line 2.time_us: is 'fast', not a time or a status"),
        (f"a,time_us\n1,1.{'0' * 50}e-3\n", "line 2.time_us: is '1.00"),
        ("a,time_us\n1,1_0\n", "line 2.time_us: is '1_0', not a time or a status"),
        ("a,time_us\n1,\uff11\n", r"line 2.time_us: is '\uff11', not a time or a status"),
        ("a,time_us\n1,-inf\n", "line 2.time_us: is '-inf', not a time or a status"),
        ("a,time_us\n1,-1e400\n", "line 2.time_us: is '-1e400', not a time or a status"),
        ("a,time_us\n1,+-5\n", "line 2.time_us: is '+-5', not a time or a status"),
        ("a,time_us\n1\n", "line 2: has 1 cells, not 2"),
        ("a" + ",a" * 1000 + ",time_us\n1,2\n", "line 1: has more than 102 columns"),
        ("a,time_us\n" + "".join(f"{n},1\n" for n in range(300)), "a: has 300 values, more than 256"),
        ("a,time_us\n" + "1,2\n" * (2**19 + 1), "has more than 524,288 results"),
        (f'{{"results": [{"0, " * 2**19}0]}}', "has more than 524,288 results"),
        (
            f'{{"Metadata": {{"Device": "x", "TimeUnit": "us"}}, "Results": [{"0, " * 2**19}0]}}',
            "has more than 524,288 results",
        ),
        (
            '{"device_name": "x", "kernel_name": "k", "tune_params_keys": [], "tune_params": {}, "cache": {'
            + ", ".join(f'"{number}": {{}}' for number in range(2**19 + 1))
            + "}}",
            "has more than 524,288 results",
        ),
        ("\0", "neither JSON nor CSV"),
        (b"PK\x03\x04 not an archive", "is damaged"),
    ],
)
def test_a_bad_file_is_refused_with_place_and_reason(
    quick_evo: Evo, tmp_path: Path, content: str | bytes, message: str
) -> None:
    file = tmp_path / "results.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = quick_evo("landscape", "import", str(file), "-o", "x.landscape.xz")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done.err
    assert message in done.err
    assert str(file) in done.err
    assert list(tmp_path.glob("*.xz")) == []


def test_a_file_that_unpacks_to_too_much_is_refused(quick_evo: Evo, tmp_path: Path) -> None:
    file = tmp_path / "bomb.zip"
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("bomb", "w") as member,
    ):
        for _ in range(257):
            member.write(b" " * 2**20)
    assert file.stat().st_size < 2**22
    done = quick_evo("landscape", "import", str(file), "-o", "x.landscape.xz")
    assert done.code == 2
    assert "256 MiB" in done.err
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "{}")
        archive.writestr("b", "{}")
    assert "2 files" in quick_evo("landscape", "import", str(file), "-o", "x.landscape.xz").err
