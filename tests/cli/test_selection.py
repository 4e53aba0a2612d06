"""Which row a verb takes: best, rank:N or an id, of exactly one problem; what is listed where the choice is open."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine.engine.compare import compared_problem, compared_record
from evoengine.engine.options.verbs import CompareOptions
from evoengine.engine.rows.queries import best_record, newest_problem_note, one_problem, problem_key
from evoengine.engine.rows.reference import RowReference, parse_row
from evoengine.errors import NothingFoundError, ProblemError, UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DType, Problem, Workload, WorkloadPart
from evoengine.search.champion.refusal import REFUSED
from tests.cli.calling import Evo, environment
from tests.report.boards import H200, L4, MISSION, evaluation, fill, key_of

CAUSAL = replace(MISSION, causal=True)
WINDOW = replace(MISSION, dtype=DType.BF16, window_left=128, window_right=0, causal=True)
DECODE = Problem(8, 32, 1, 128, kv_heads=8, seq_kv=4096)
PACKED = Problem(2, 8, 99, 64, lengths_q=(99, 0))
OPTIONS: Mapping[Problem, tuple[str, ...]] = {
    MISSION: ("--problem", "mission"),
    CAUSAL: ("--problem", "1x8x512x64", "--causal"),
    WINDOW: ("--problem", "default", "--dtype", "bf16", "--window", "128,0"),
    DECODE: ("--problem", "decode"),
    PACKED: ("--problem", "2x8x99x64", "--lengths", "99,0"),
}
"""The options that select each problem, as in ``search``."""
SMALL = 2
"""Rows of each problem."""


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """One study of each problem, stored in this order; the shape of the first begins three others' keys."""
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        for problem in OPTIONS:
            fill(board, H200, problem=problem, rows=SMALL)
    return tmp_path / "leaderboard.db"


# -- references to rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("best", RowReference()), ("rank:12", RowReference(rank=12)), ("7", RowReference(row_id=7))],
)
def test_a_reference_is_best_a_rank_or_an_id(text: str, expected: RowReference) -> None:
    assert parse_row(text) == expected


@pytest.mark.parametrize(
    "text", ["", "Best", "rank:", "rank:0", "rank:-1", "rank:1.5", "-7", "7.0", "\u0661", "9" * 40]
)
def test_other_texts_are_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="rank:N"):
        parse_row(text)


def test_every_verb_takes_the_same_references(quick_evo: Evo, tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        fill(board, H200)  # 24 rows; the newest is the fastest

    def shown(*words: str) -> int:
        return int(quick_evo("leaderboard", "show", *words, "--json").json()["id"])

    assert [shown(), shown("best"), shown("rank:1"), shown("rank:3"), shown("5")] == [24, 24, 24, 22, 5]
    for verb in (("profile",), ("export", "-o", "x.cu")):
        done = quick_evo(*verb, "rank:3")
        assert (done.code, "unknown family" in done.err or "row 22" in done.err) == (2, True), done
    options = CompareOptions(db=str(tmp_path / "leaderboard.db"), row="rank:3")
    record = compared_record(options, MISSION, H200.name, "graph-warm")
    assert record is not None
    assert record.row.id == 22
    beyond = quick_evo("leaderboard", "show", "rank:25")
    assert (beyond.code, beyond.err.count("\n")) == (1, 1)
    assert "1 to 24" in beyond.err


# -- best --------------------------------------------------------------------------------------------------------------


def two_rows(path: Path, device: Any, *times_us: float, notes: tuple[str, ...] = ()) -> Path:
    """A ranking whose first row is the champion; the last row has notes."""
    with Leaderboard(f"sqlite:///{path}") as board:
        study = board.open_study(key_of(device))
        ids = [board.record(study, evaluation(n, us, predicted=device.predicted)) for n, us in enumerate(times_us)]
        board.record_challenge(study.scope, ids[0], None, None)
        for note in notes:
            board.add_note(ids[-1], note)
    return path


@pytest.mark.parametrize(("device", "expected"), [(L4, 2), (H200, 1)], ids=["predicted", "measured"])
def test_best_is_rank_1_of_predictions_and_the_champion_of_measurements(
    tmp_path: Path, quick_evo: Evo, device: Any, expected: int
) -> None:
    db = two_rows(tmp_path / "leaderboard.db", device, 14.71, 14.41)
    with Leaderboard(db, create=False) as board:
        assert best_record(board, None, None, str(db)).row.id == expected
    assert quick_evo("leaderboard", "show", "--json").json()["id"] == expected
    listed = quick_evo("leaderboard").out
    assert (re.search("'best'.* rank 1", listed) is not None) == device.predicted


def test_best_is_no_row_that_an_inspection_refused(tmp_path: Path) -> None:
    db = two_rows(tmp_path / "board.db", L4, 14.71, 14.41, notes=(f"{REFUSED}a race",))
    with Leaderboard(db, create=False) as board:
        assert best_record(board, None, None, str(db)).row.id == 1


# -- problems ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", OPTIONS, ids=lambda problem: problem.key)
@pytest.mark.every(2)
def test_the_options_of_search_select_exactly_one_problem(
    quick_evo: Evo, db: Path, problem: Problem, tmp_path: Path
) -> None:
    words = OPTIONS[problem]
    listed = quick_evo("leaderboard", *words, "--json").json()
    assert [row["problem"] for row in listed] == [problem.key] * SMALL
    by_key = quick_evo("leaderboard", "--problem", problem.key, "--json").json()
    assert by_key == listed
    assert quick_evo("leaderboard", "show", "best", *words, "--json").json()["id"] == listed[0]["id"]
    assert quick_evo("leaderboard", "export", "-o", "-", *words).json()["rows"][0]["problem"] == problem.key
    report = quick_evo("report", *words, "--json").json()
    assert report["study_id"] == listed[0]["study_id"]
    lock = quick_evo("lock", *words, "--json").json()
    assert [kernel["problem"] for kernel in lock["kernels"]] == [problem.key]


def test_without_options_the_newest_problem_is_taken_and_the_others_are_listed(quick_evo: Evo, db: Path) -> None:
    done = quick_evo("leaderboard", "show", "--json")
    assert done.json()["problem"] == PACKED.key
    assert re.match(rf"note: .*{PACKED.key} measured on NVIDIA H200; ", done.err)
    *others, causal, mission = done.err.rstrip().split(" give ")[1].split("; ")
    assert (len(others), causal, mission) == (2, "--problem 1x8x512x64 --causal", "--problem 1x8x512x64")
    for option in (*others, causal, mission):
        again = quick_evo("leaderboard", "show", *option.split(), "--json")
        assert (again.code, again.err) == (0, ""), "the listed options select one problem"
        assert again.json()["problem"] != PACKED.key
    assert quick_evo("leaderboard", "show", "--json", "--quiet").err == ""
    assert quick_evo("report", "--json").json()["study_id"] == len(OPTIONS)
    assert len(quick_evo("leaderboard", "--json").json()) == SMALL * len(OPTIONS), "all rankings"


@pytest.mark.parametrize(
    "words",
    [
        ("leaderboard", "show"),
        ("profile",),
        ("export", "best", "-o", "x.cu"),
        ("export", "--best", "-o", "x.cu"),
        ("report",),
        ("lock",),
    ],
    ids=" ".join,
)
@pytest.mark.every(3)
def test_a_problem_that_is_not_stored_lists_the_stored_ones(quick_evo: Evo, db: Path, words: tuple[str, ...]) -> None:
    done = quick_evo(*words, "--problem", "1x8x512x64", "--sink")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "1x8x512x64-fp16-sink" in done.err
    assert "--problem 1x8x512x64 --causal; --problem 1x8x512x64" in done.err


def test_a_list_of_candidates_is_short(quick_evo: Evo, tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        for batch in range(1, 31):
            fill(board, H200, problem=replace(MISSION, batch=batch), rows=2)
    done = quick_evo("leaderboard", "show", "--problem", "tiny")
    assert "--problem 30x8x512x64; " in done.err
    assert "22 more" in done.err


def test_devices_of_one_problem_are_told_apart(quick_evo: Evo, tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        fill(board, L4, rows=3)
        fill(board, replace(H200, name="NVIDIA L4"), rows=3)
        fill(board, H200, rows=3)
    done = quick_evo("leaderboard", "show", "--json")
    assert (done.json()["device"], done.json()["predicted"]) == ("NVIDIA H200", False)
    options = done.err.rstrip().split(" give ")[1].split("; ")
    assert sorted(options) == ["--device 'NVIDIA L4'", "--device emulator"]
    other = quick_evo("leaderboard", "show", "--device", "emulator", "--json")
    assert (other.json()["predicted"], other.err) == (True, "")
    wrong = quick_evo("leaderboard", "show", "1", "--device", "h200")
    assert (wrong.code, "NVIDIA L4 (emulator)" in wrong.err) == (2, True)


def test_an_id_of_another_problem_is_refused(quick_evo: Evo, db: Path) -> None:
    assert quick_evo("leaderboard", "show", "1", *OPTIONS[MISSION], "--json").json()["id"] == 1
    for words in (("leaderboard", "show", "1"), ("profile", "1"), ("export", "1", "-o", "x.cu")):
        done = quick_evo(*words, *OPTIONS[CAUSAL])
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert f"row 1 is of {MISSION.key}, not of {CAUSAL.key}" in done.err


def test_a_workload_is_selected_by_its_key(quick_evo: Evo, tmp_path: Path) -> None:
    workload = Workload("two", (WorkloadPart(MISSION, 1.0), WorkloadPart(DECODE, 2.0)))
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        fill(board, H200, rows=SMALL)
        study = board.open_study(replace(key_of(H200), workload=workload))
        board.record(study, evaluation(1, 5.0))
    done = quick_evo("leaderboard", "show", "--json")
    assert done.json()["problem"] == workload.key
    listed = quick_evo("leaderboard", "show", *OPTIONS[CAUSAL]).err
    assert f"--problem {workload.key}; --problem 1x8x512x64" in listed
    assert quick_evo("leaderboard", "show", "--problem", workload.key, "--json").json() == done.json()
    with pytest.raises(UsageError, match="workload"):
        one_problem(None, None, "leaderboard.db")


def test_python_takes_problems_names_shapes_and_keys() -> None:
    assert {problem_key(one) for one in (MISSION, "mission", "default", "1x8x512x64", MISSION.key)} == {MISSION.key}
    for problem in OPTIONS:
        assert problem_key(problem.key) == problem.key
    with pytest.raises(ProblemError, match="unknown problem 'huge'"):
        problem_key("huge")


def test_compare_and_verify_take_the_newest_problem(db: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.db")
    assert one_problem(None, None, missing) == one_problem(None, "emulator", str(db)) == MISSION, "the default problem"
    assert one_problem(None, None, str(db)) == PACKED
    assert one_problem(CAUSAL.key, None, str(db)) == CAUSAL
    assert one_problem("decode", None, missing) == one_problem(DECODE, None, missing) == DECODE
    with pytest.raises(NothingFoundError, match="--causal"):
        one_problem("1x1x1x16-fp16", None, str(db))
    said = newest_problem_note(str(db), PACKED.key)
    assert re.search(rf"{PACKED.key}; .*--problem 8x32x1x128 ", said)
    assert said.endswith("--problem 1x8x512x64 --causal; --problem 1x8x512x64")
    assert newest_problem_note(str(db), PACKED.key, "emulator") == newest_problem_note(missing, PACKED.key) == ""
    assert compared_problem(CompareOptions(db=str(db), row="1")) == MISSION, "that of the row"
    assert compared_problem(CompareOptions(CAUSAL, db=str(db), row="1")) == CAUSAL


# -- pipes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(("leaderboard",), marks=pytest.mark.thorough),
        ("leaderboard", "--json"),
        pytest.param(("leaderboard", "show", "--source"), marks=pytest.mark.thorough),
        ("leaderboard", "export", "-o", "/dev/stdout", "--format", "csv"),
    ],
)
@pytest.mark.every(2)
def test_a_reader_that_ends_early_is_no_error(cache: Path, verb: tuple[str, ...], long: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -m evoengine {' '.join(verb)} --quiet | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=long, env=environment(cache), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a leaderboard whose output is larger than a pipe's buffer."""
    folder = tmp_path_factory.mktemp("long")
    with Leaderboard(f"sqlite:///{folder / 'leaderboard.db'}") as board:
        for batch in range(1, 61):
            study = board.open_study(key_of(H200, replace(MISSION, batch=batch)))
            for number in range(10):
                whole = evaluation(number, 5.0 + number)
                source = "// a line of the kernel\n" * (10_000 if batch == 60 else 1)  # the newest is shown
                board.record(study, replace(whole, source=source))
    return folder
