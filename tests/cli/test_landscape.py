"""``landscape`` and ``--device replay:FILE`` from the command line."""

from __future__ import annotations

import json
import re
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine.cli.verbs.landscape import export_landscape, import_landscape, run_record, show_landscape
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.options.verbs import RecordOptions
from evoengine.engine.search_plan import make_plan
from evoengine.engine.subspace import Share, restricted
from evoengine.engine.unfinished_recording import shared_database
from evoengine.errors import UsageError
from evoengine.landscape.file import pack_landscape, read_landscape
from evoengine.landscape.noise import Noise
from evoengine.landscape.synthetic import null_landscape
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import NAMED_PROBLEMS, Config, Problem
from evoengine.parity.mutants.mma import BASE
from evoengine.search.forecast.choice import fastest_by_forecast
from evoengine.space.family_spaces import FamilySpaces
from evoengine.target import get_target
from tests.cli.calling import Evo, environment
from tests.landscape.making import RECORDED
from tests.leaderboard.test_leaderboard import evaluation, key
from tests.warm import WarmPython

FIXED = {**BASE, "WARPS_M": 1, "WARPS_N": 1, "BLOCK_N": 16}
RECORD = (
    *("landscape", "record", "--problem=1x1x4x16", "--family=mma", "--device=emulator", "--no-small-cases"),
    *(f"--only={name}={value}" for name, value in FIXED.items() if name not in ("CACHE_OP", "L2_PREFETCH_BYTES")),
    "--output=small.landscape.xz",
)
"""A recording of six configs, which are quick on the emulator."""


@pytest.mark.slow
def test_an_interrupted_recording_resumes(evo: Evo, tmp_path: Path, cache: Path, warm: WarmPython) -> None:
    part = tmp_path / "small.landscape.xz.part"
    process = warm.start("evoengine", (*RECORD, "--all", "--workers=1"), tmp_path, environment(cache))
    deadline_s = time.monotonic() + 300
    while time.monotonic() < deadline_s and not (tmp_path / "small.landscape.xz").exists() and _recorded(part) < 2:
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    done = process.finish(timeout_s=300)
    before = _recorded(part)
    if done.code == 130:  # else it ended before the signal
        assert "small.landscape.xz.part" in done.err
        assert not (tmp_path / "small.landscape.xz").exists()
        assert before >= 2
        assert evo(*RECORD, "--all", "--workers=1", "--time-limit=0", "--early").code == 0
        early = read_landscape(tmp_path / "small.landscape.xz")
        assert before <= len(early.evaluations) <= early.families[0].valid_configs
        assert f"{len(early.evaluations)} configs" in early.provenance.sampling
        assert part.exists()
        again = evo(*RECORD, "--all", "--workers=1")
        assert again.code == 0, again.err
    landscape = read_landscape(tmp_path / "small.landscape.xz")
    assert landscape.device.predicted
    assert len(landscape.evaluations) == landscape.families[0].valid_configs
    assert list(tmp_path.glob("*.part*")) == []
    assert landscape.provenance.sampling.startswith("the whole space")
    assert "the problem itself" in landscape.provenance.checks
    assert {e.config["BLOCK_N"] for e in landscape.evaluations} == {16}
    assert {e.config["L2_PREFETCH_BYTES"] for e in landscape.evaluations} == {0, 128, 256}
    assert all(e.timing is not None and e.code_hash and e.resources and e.stage_seconds for e in landscape.evaluations)


@pytest.mark.thorough
def test_parts_of_a_space_make_the_whole(evo: Evo, tmp_path: Path) -> None:
    command = [word for word in RECORD if not word.startswith("--output")]
    for number in (1, 2):
        done = evo(*command, "--all", f"--part={number}/2", f"--output=part{number}.xz", "--workers=1", "--samples=12")
        assert done.code == 0, done.err
        assert "stages" in done.err
        assert "ms compile" in done.err
    first, second = (read_landscape(tmp_path / f"part{number}.xz") for number in (1, 2))
    assert first.provenance.sampling.startswith("part 1/2 ")
    assert first.families[0].valid_configs == len(first.evaluations) + len(second.evaluations)
    assert not first.by_config.keys() & second.by_config.keys()
    assert evo("landscape", "merge", "part1.xz", "part2.xz", "-o", "whole.xz").code == 0
    whole = read_landscape(tmp_path / "whole.xz")
    assert whole.by_config.keys() == first.by_config.keys() | second.by_config.keys()
    assert "part 1/2" in whole.provenance.sampling
    assert "part 2/2" in whole.provenance.sampling
    assert [start.values for start in whole.families[0].space.starts] == [
        start.values for start in first.families[0].space.starts
    ]
    done = evo("landscape", "merge", "part1.xz", "-o", "x.xz")
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("text", ["3/2", "0/2", "1", "1/", "a/b", "1/2/3", "-1/2"])
def test_a_part_is_one_of_several(text: str) -> None:
    assert (Share.parse("2/3").number, Share.parse("2/3").of) == (2, 3)
    with pytest.raises(UsageError, match=f"--part {text}"):
        Share.parse(text)


FEWER = ("THREADS=32,64", "STAGING=direct", "MERGE=shuffle")
"""Values that leave some hundred configs, so that the forecast of all is quick."""


@pytest.mark.thorough
def test_configs_by_forecast_are_recorded_first(evo: Evo, tmp_path: Path) -> None:
    """Then uniformly drawn ones, or what a search proposes."""
    drawn = set(_recorded_by_forecast(evo, tmp_path, by_search=False))
    proposed = set(_recorded_by_forecast(evo, tmp_path, by_search=True))
    assert len(drawn) == len(proposed) == 5
    assert len(drawn & proposed) in (4, 5)
    with pytest.raises(UsageError, match="--by-search"):
        RecordOptions(tmp_path / "x.xz", NAMED_PROBLEMS["tiny"], all_configs=True, by_search=True)


def _recorded_by_forecast(evo: Evo, tmp_path: Path, *, by_search: bool) -> list[Config]:
    problem = Problem(1, 1, 4, 32)
    options = RecordOptions(
        *(tmp_path / f"{by_search}.landscape.xz", problem, 5),
        by_forecast=4,
        by_search=by_search,
        only=FEWER,
        family="scalar",
        device="emulator",
        small_cases=False,
    )
    words = ["landscape", "record", f"--problem={problem.shape_key}", "--family=scalar", "--device=emulator"]
    words += ["--no-small-cases", "--count=5", "--by-forecast=4", f"--output={options.output}"]
    words += [*["--by-search"] * by_search, *(f"--only={one}" for one in FEWER)]
    done = evo(*words)
    assert done.code == 0, done.err
    plan = make_plan(options.search_options())
    landscape = read_landscape(options.output)
    assert ("search" in landscape.provenance.sampling) is by_search
    (family,) = landscape.families
    chosen = restricted(plan.families, plan.problem, get_target("l4"), FEWER)
    valid = FamilySpaces(tuple(family.valid for family in chosen.taken))
    expected = fastest_by_forecast(valid, plan.forecasts, seed=0, count=2)
    configs = {one.config for one in family.evaluations}
    assert configs >= set(expected.opening)
    assert len(configs & {*expected.opening, *expected.candidates}) >= 4, "few of them are drawn by chance"
    return [*configs]


def test_more_configs_by_forecast_than_in_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--by-forecast"):
        RecordOptions(tmp_path / "x.xz", NAMED_PROBLEMS["tiny"], 5, by_forecast=6)
    with pytest.raises(UsageError, match="--by-forecast"):
        RecordOptions(tmp_path / "x.xz", NAMED_PROBLEMS["tiny"], by_forecast=6, all_configs=True)
    few = ("THREADS=32", "VECTOR=4", "KEYS_PER_STEP=1", "MIN_CTAS=1", "UNROLL=1", "LANES_PER_KEY=4", "STAGING=direct")
    options = RecordOptions(
        *(tmp_path / "x.xz", NAMED_PROBLEMS["tiny"], 99), by_forecast=99, only=few, family="scalar", device="emulator"
    )
    with pytest.raises(UsageError, match="only"):
        run_record(options)


def test_an_unfinished_recording_is_left_to_its_own_options(tmp_path: Path) -> None:
    """A complete recording removes its database, in which another one may be."""
    few = ("THREADS=32", "VECTOR=4", "KEYS_PER_STEP=1", "MIN_CTAS=1", "UNROLL=1", "LANES_PER_KEY=4", "STAGING=direct")
    options = RecordOptions(
        tmp_path / "x.json", Problem(1, 1, 4, 32), 1, only=few, family="scalar", device="emulator", small_cases=False
    )
    with Leaderboard(f"sqlite:///{options.unfinished}") as board:
        board.record(board.open_study(key()), evaluation(1, 5.0))
    with pytest.raises(UsageError, match=r"x\.json\.part holds another recording"):
        run_record(options)
    assert _recorded(options.unfinished) == 1
    options = replace(options, output=tmp_path / "y.json")
    with shared_database(options.unfinished):
        assert run_record(options) == 0
        assert _recorded(options.unfinished) == 1, "another process records into it, too"
    assert run_record(replace(options, force=True)) == 0
    assert not options.unfinished.exists()
    options.unfinished.touch()
    with pytest.raises(UsageError, match=r"y\.json exists: give --force"):
        run_record(options)


def test_a_part_of_a_sample_is_refused(tmp_path: Path) -> None:
    tiny = NAMED_PROBLEMS["tiny"]
    options = RecordOptions(tmp_path / "x.xz", tiny, 10, family="scalar", device="emulator", part="1/2")
    with pytest.raises(UsageError, match=r"--part 1/2: .*--all"):
        run_record(options)


def _recorded(part: Path) -> int:
    """Number of stored rows."""
    if not part.exists():
        return 0
    try:
        with Leaderboard(f"sqlite:///{part}", create=False) as board:
            return sum(board.counts().values())
    except Exception:  # noqa: BLE001 - the file is being created
        return 0


@pytest.mark.slow
def test_a_replay_finds_the_recorded_rows_and_is_marked_as_replay(evo: Evo) -> None:
    done = evo("search", f"--device=replay:{RECORDED}", "--budget=40", "--strategy=random")
    assert done.code == 0, done.err
    assert f"replay of {RECORDED}: times PREDICTED on NVIDIA L4" in done.out
    assert "space mma: 216 valid of " in done.out
    assert "off: starts, forecast, transfer, skip\n" in done.out
    assert "export" not in done.out
    refused = evo("export", "--best", "-o", "best.cu")
    assert refused.code == 2
    assert "is a replayed one" in refused.err
    other = evo("search", f"--device=replay:{RECORDED}", "--budget=20", "--strategy=random", "--seed=1")
    rows = evo("leaderboard", "--json", "--top", "100").json()
    found = []
    for seed, text in enumerate((done.out, other.out)):  # the champion is common to both, the best is not
        (study,) = re.findall(rf"random seed {seed} #(\d+)\n", text)
        found.append(min(row["median_us"] for row in rows if row["study_id"] == int(study)))
        assert re.search(rf"^best +{found[-1]:.2f} us\b", text, re.MULTILINE)
    assert f"{found[0]:.2f}" != f"{found[1]:.2f}", "control: the two differ"
    ranking = evo("leaderboard").out
    assert "PREDICTED on NVIDIA L4, landscape" in ranking
    assert "(replay)" in ranking


@pytest.mark.parametrize(
    ("device", "changes", "message"),
    [
        (f"{RECORDED}?noise=0.01", {}, "predictions, which do not scatter"),
        ("null.landscape.xz?nose=0.01", {}, "unknown replay option 'nose'"),
        ("null.landscape.xz?noise=2", {}, "noise=2: give a share from 0 to 0.5"),
        ("null.landscape.xz?drift=nan", {}, "drift=nan: give a share from 0 to 0.5"),
        ("null.landscape.xz?noise=0.0_1", {}, "noise=0.0_1: give a share from 0 to 0.5"),
        ("null.landscape.xz?drift=\uff10.1", {}, "drift=\uff10.1: give a share from 0 to 0.5"),
        ("null.landscape.xz?noise= 0.1", {}, "noise= 0.1: give a share from 0 to 0.5"),
        ("null.landscape.xz?noise=0.1&seed=1&noise=0.2", {}, "replay option 'noise' is given twice"),
        ("null.landscape.xz?seed=x", {}, "seed=x: give a whole number"),
        (f"{RECORDED}", {"problem": NAMED_PROBLEMS["long"]}, "not of 1x8x1024x64-fp16: leave --problem out"),
        (f"{RECORDED}", {"family": "wmma"}, "has no family 'wmma', only mma"),
        (f"{RECORDED}", {"arch": "sm_80"}, "leave --arch and --space out"),
        ("nothing.xz", {}, "nothing.xz: cannot be read"),
        ("foreign.landscape.xz", {}, "problem: is a foreign kernel's"),
    ],
)
@pytest.mark.every(2)
def test_unsupported_options_of_a_replay_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("null.landscape.xz").write_bytes(pack_landscape(null_landscape(20)))
    Path("foreign.landscape.xz").write_bytes(pack_landscape(replace(null_landscape(20), problem=None)))
    request = replace(SearchOptions(NAMED_PROBLEMS["mission"], device=f"replay:{device}"), **changes)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        make_plan(request)
    assert "\n" not in str(caught.value)


def test_noise_goes_with_a_measured_landscape(tmp_path: Path) -> None:
    file = tmp_path / "null.landscape.xz"
    file.write_bytes(pack_landscape(null_landscape(20)))
    plan = make_plan(SearchOptions(NAMED_PROBLEMS["mission"], device=f"replay:{file}?noise=0.02&drift=0.01&seed=3"))
    assert plan.replay is not None
    assert plan.replay.noise == Noise(0.02, 0.01, 3)
    assert plan.device.name.endswith("noise 0.02, drift 0.01, seed 3")


def test_the_acceptance_threshold_follows_the_kind_of_times(tmp_path: Path) -> None:
    file = tmp_path / "null.landscape.xz"
    file.write_bytes(pack_landscape(null_landscape(20)))
    mission, tiny = NAMED_PROBLEMS["mission"], NAMED_PROBLEMS["tiny"]
    emulated = make_plan(SearchOptions(tiny, device="emulator", family="scalar"))
    replays = [make_plan(SearchOptions(mission, device=f"replay:{one}")) for one in (file, f"{file}?noise=0.01")]
    assert [plan.device.predicted for plan in (emulated, *replays)] == [True, False, False]
    assert [plan.accept_threshold for plan in (emulated, *replays)] == [0.0, 0.0, 0.0]
    measured = replace(emulated, device=replace(emulated.device, kind="cuda", predicted=False))
    assert measured.accept_threshold == 0.03
    asked = [replace(plan, request=replace(plan.request, accept=0.01)) for plan in (emulated, *replays, measured)]
    assert [plan.accept_threshold for plan in asked] == [0.01] * 4


def test_a_replay_of_predictions_ends_with_rank_1_as_champion(evo: Evo) -> None:
    done = evo("search", "--device", f"replay:{RECORDED}", "--budget", "60", "--json", "--no-log")
    document = done.json()
    assert (document["accept_threshold"], document["champion"]["rank"]) == (0.0, 1)
    assert document["best"] == document["champion"] == document["elites"][0]
    assert document["difference"] == ""
    again = evo("search", "--device", f"replay:{RECORDED}", "--budget", "60", "--no-log")
    assert re.search(r"^this run .*\bno\b", again.out, re.MULTILINE)
    assert f"row {document['champion']['id']}" in again.out
    strict = evo("search", "--device", f"replay:{RECORDED}", "--budget", "60", "--accept", "0.5", "--db=other.db")
    assert re.search(r"^accept .*50\.0%", strict.out, re.MULTILINE)
    why = re.search(r"^this run .* row (\d+)\nchampion .* row (\d+)\nwhy       (.*)$", strict.out, re.MULTILINE)
    assert why is not None, strict.out
    assert why[1] != why[2]
    assert re.search(rf"row {why[2]}\b.*--accept .*50\.0%$", why[3])


def test_invalid_options_of_a_recording_are_refused(tmp_path: Path) -> None:
    tiny = NAMED_PROBLEMS["tiny"]
    request = RecordOptions(tmp_path / "new.landscape.xz", tiny, 3, device="emulator", family="scalar")
    old = tmp_path / "old.landscape.xz"
    old.touch()
    for wrong, message in (
        (replace(request, output=old), "exists: give --force"),
        (replace(request, output=Path()), "is a folder: give a file"),
        (replace(request, output=Path("/")), "is a folder: give a file"),
        (replace(request, output=tmp_path, force=True), "is a folder: give a file"),
        (replace(request, output=tmp_path / "none" / "x.xz"), "leads nowhere: give another -o"),
        (replace(request, only=("THREADS",)), "--only THREADS: give NAME=VALUE"),
        (replace(request, only=("COLOUR=red",)), "--only COLOUR: no family has such a tunable"),
        (replace(request, only=("THREADS=33",)), "--only THREADS=33: choose from 32, 64"),
        (replace(request, count=2**19 + 1), "--count 524289: a landscape has at most 524,288 configs"),
        (
            replace(request, problem=NAMED_PROBLEMS["mission"], family="auto", device=f"replay:{RECORDED}"),
            "a replay is a recording already",
        ),
        (
            replace(request, problem=NAMED_PROBLEMS["mission"], family="mma", count=None, all_configs=True),
            "are too many for --all: give --count, or --only NAME=VALUE",
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            run_record(wrong)
    assert list(tmp_path.iterdir()) == [old]


def test_landscapes_are_shown_imported_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_landscape(RECORDED, json_output=False)
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("PREDICTED for NVIDIA L4", "216 of 216 valid configs", "216 ok", "within 5%", "BLOCK_N=16"):
        assert words in shown
    show_landscape(RECORDED, json_output=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts["quantiles_us"] == sorted(facts["quantiles_us"])
    assert facts["best"]["BLOCK_N"] == 16

    cache_file, back, results = (tmp_path / name for name in ("cache.json", "back.landscape.xz", "t4.json"))
    export_landscape(RECORDED, cache_file, "kernel-tuner", None, force=False)
    import_landscape(cache_file, back, "kernel-tuner", force=False)
    assert read_landscape(back).key == read_landscape(RECORDED).key
    export_landscape(RECORDED, results, "t4", "mma", force=False)
    assert len(json.loads(results.read_text())["results"]) == 216
    with pytest.raises(UsageError, match=r"kernel-tuner.*t4"):
        export_landscape(RECORDED, tmp_path / "x", "csv", None, force=False)
    with pytest.raises(UsageError, match=r"back\.landscape\.xz"):
        import_landscape(cache_file, back, "kernel-tuner", force=False)


def test_a_file_for_the_terminal_is_all_that_is_printed(quick_evo: Evo, tmp_path: Path) -> None:
    assert quick_evo("landscape", "export", str(RECORDED), "--family", "mma", "-o", "a.json").code == 0
    for name in ("-", "/dev/stdout"):
        done = quick_evo("landscape", "export", str(RECORDED), "--family", "mma", "-o", name)
        assert (done.code, done.out, done.err) == (0, (tmp_path / "a.json").read_text(), "")
    refused = quick_evo("landscape", "record", "-o", "-")
    assert (refused.code, refused.out) == (2, "")
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_landscape_that_is_named_twice_is_not_merged(quick_evo: Evo, tmp_path: Path) -> None:
    (tmp_path / "n.xz").write_bytes(RECORDED.read_bytes())
    (tmp_path / "link.xz").symlink_to("n.xz")
    for other in ("n.xz", "./n.xz", "link.xz"):
        done = quick_evo("landscape", "merge", "n.xz", other, "-o", "m.xz")
        assert (done.code, done.out) == (2, "")
        assert "twice" in done.err
    assert not (tmp_path / "m.xz").exists()


@pytest.mark.slow
def test_the_null_control_runs_without_a_gpu(evo: Evo) -> None:
    done = evo("selftest", "--null", "--device=emulator", "--runs=1", "--budget=6", "--json")
    assert done.code == 0, done.err
    assert [(one["accepted"], one["runs"][0]["evaluated"]) for one in done.json()["conditions"]] == [(0, 6)] * 2
