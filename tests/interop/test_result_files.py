"""Result files: rows are written and read back as claims; nothing in a file is trusted or executed."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine.errors import LandscapeError
from evoengine.interop.result_files import Vetted, read_claims
from evoengine.interop.rows import COLUMNS, rows_csv, rows_json
from evoengine.interop.t4 import t4_results
from evoengine.leaderboard.records import RowFilter, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Evaluation, Status, Timing, parse_problem
from evoengine.search.warmstart.resume import MAX_IMPORTS, imported_starts
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.report.boards import H200, failed, key_of, open_board

PROBLEM = parse_problem("tiny")
SPACE = find_space("scalar")
VALID = SPACE.build(PROBLEM, get_target("l4"))
SPACES = {"scalar": SPACE}


def configs(count: int) -> list[Config]:
    """Valid configs of the family scalar."""
    import numpy as np

    rng = np.random.default_rng(3)
    found = dict.fromkeys(VALID.sample(rng) for _ in range(4 * count))
    return list(found)[:count]


def fill(board: Leaderboard, count: int = 20) -> Study:
    """Measured rows of valid configs, the first one fastest, and one that failed."""
    study = board.open_study(key_of(H200, PROBLEM))
    for number, config in enumerate(configs(count)):
        time_us = 5.0 + number
        timing = Timing(time_us, time_us - 0.1, time_us + 0.1, False, "graph-warm", (time_us,))
        seconds = {"compile": 1.0, "parity": 2.0, "bench": 0.5}
        board.record(study, Evaluation(config, Status.OK, code_hash=str(number), timing=timing, stage_seconds=seconds))
    board.record(study, failed(1, Status.COMPILE_FAILED, 'a "quoted", reason\nin two lines'))
    return study


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    return open_board(tmp_path)


def everything(board: Leaderboard) -> Any:
    return board.rows(RowFilter(statuses=()))


def test_a_pipe_is_read_once(board: Leaderboard) -> None:
    """As the shell's ``<(…)``: a second reader finds nothing, and waits forever for a named pipe."""
    fill(board)
    reader, writer = os.pipe()
    os.write(writer, rows_json(everything(board)).encode())
    os.close(writer)
    try:
        assert read_claims(Path(f"/dev/fd/{reader}"), SPACES).rows == 21
    finally:
        os.close(reader)


@pytest.mark.parametrize("write", [rows_json, rows_csv], ids=["json", "csv"])
def test_round_trip(board: Leaderboard, tmp_path: Path, write: Callable[[Any], str]) -> None:
    fill(board)
    file = tmp_path / "rows"
    file.write_text(write(everything(board)))
    vetted = read_claims(file, SPACES)
    assert vetted.rows == 21
    assert [one.config for one in vetted.configs] == configs(20)
    assert [one.claimed_us for one in vetted.configs] == [5.0 + number for number in range(20)]
    assert {(one.problem, one.claimed_device) for one in vetted.configs} == {(PROBLEM.key, "NVIDIA H200")}
    assert dict(vetted.left_out) == {"not said to be correct": 1}


def test_csv_is_valid(board: Leaderboard) -> None:
    fill(board)
    rows = list(csv.DictReader(io.StringIO(rows_csv(everything(board)))))
    assert len(rows) == 21
    assert tuple(rows[0]) == COLUMNS
    assert rows[-1]["reason"] == 'a "quoted", reason\nin two lines'


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "'=1", "plain", "'quoted'", ""])
def test_no_text_of_a_csv_is_a_formula_and_numbers_stay(board: Leaderboard, tmp_path: Path, text: str) -> None:
    fill(board, 1)
    rows = [replace(row, device=text, max_error=-1.0) for row in everything(board)]
    content = rows_csv(rows)
    cells = next(csv.DictReader(io.StringIO(content)))
    assert cells["device"][:1] not in tuple("=+-@\t")
    assert float(cells["max_error"]) == -1.0
    file = tmp_path / "rows.csv"
    file.write_text(content)
    if text.isprintable():
        assert {one.claimed_device for one in read_claims(file, SPACES).configs} == {text}


def test_t4_round_trip(board: Leaderboard, tmp_path: Path) -> None:
    study = fill(board)
    records = [board.get(row.id) for row in board.rows(RowFilter(study_id=study.id))]
    document = t4_results(records, SPACE)
    assert document["schema_version"] == "1.0.0"
    assert document["results"][0]["times"]["compilation_time"] == 1000.0
    assert {m["name"]: m["value"] for m in document["results"][0]["measurements"]}["time"] == 0.005
    file = tmp_path / "t4.json"
    file.write_text(json.dumps(document))
    assert [one.claimed_us for one in read_claims(file, SPACES).configs] == [5.0 + number for number in range(20)]
    del document["metadata"]["family"]
    file.write_text(json.dumps(document))
    with pytest.raises(LandscapeError, match=r"metadata\.family: is missing.*--family"):
        read_claims(file, SPACES)
    assert len(read_claims(file, SPACES, "scalar").configs) == 20


@pytest.mark.parametrize(
    ("unit", "us"), [("ns", 2e-3), ("microseconds", 2.0), ("ms", 2e3), ("s", 2e6), ("hours", None), (1, None)]
)
def test_a_claimed_time_has_the_unit_of_its_measurement(
    board: Leaderboard, tmp_path: Path, unit: object, us: float | None
) -> None:
    study = fill(board, 1)
    document = t4_results([board.get(row.id) for row in board.rows(RowFilter(study_id=study.id))], SPACE)
    document["results"][0]["measurements"] = [{"name": "time", "value": 2.0, "unit": unit}]
    file = tmp_path / "t4.json"
    file.write_text(json.dumps(document))
    if us is None:
        with pytest.raises(LandscapeError, match=r"results\[0\]\.measurements\[0\]\.unit: .*ns, us, ms or s"):
            read_claims(file, SPACES)
    else:
        (claim,) = read_claims(file, SPACES).configs
        assert claim.claimed_us == pytest.approx(us)


def edited(board: Leaderboard, file: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    fill(board, 2)
    document = json.loads(rows_json(everything(board)))
    edit(document)
    file.write_text(json.dumps(document))
    return file


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: d.update(schema=2), "schema: is 2"),
        (lambda d: d.update(format="pickle"), "format: is 'pickle'"),
        (lambda d: d.update(rows={}), "rows: "),
        (lambda d: d["rows"].append(3), r"rows\[\d+\]: "),
        (lambda d: d["rows"][0].pop("problem"), r"rows\[0\].*problem"),
        (lambda d: d["rows"][0].update(problem="a\x1b[2Jb"), r"rows\[0\].problem: "),
        (lambda d: d["rows"][0].update(problem="a" * 201), r"rows\[0\].problem: .*200"),
        (lambda d: d["rows"][0].update(status="splendid"), r"rows\[0\].status: .*splendid"),
        (lambda d: d["rows"][0].update(median_us=-1.0), r"rows\[0\].median_us: "),
        (lambda d: d["rows"][0].update(median_us=float("nan")), r"rows\[0\].median_us: "),
        (lambda d: d["rows"][0].update(median_us="fast"), r"rows\[0\].median_us: "),
        (lambda d: d["rows"][0].update(predicted="no"), r"rows\[0\].predicted: "),
        (lambda d: d["rows"][0]["config"].update(THREADS=[1]), r"rows\[0\].config.THREADS: "),
    ],
)
def test_a_malformed_file_is_refused_with_file_key_and_reason(
    board: Leaderboard, tmp_path: Path, edit: Callable[[dict[str, Any]], None], says: str
) -> None:
    with pytest.raises(LandscapeError, match=says) as refusal:
        read_claims(edited(board, tmp_path / "bad.json", edit), SPACES)
    assert "bad.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"\x80\x04\x95pickle", "is not JSON"),
        (b"[]", "not a JSON object"),
        (b"id,rank\n1,2\n", "champion: the column is missing"),
        (b"id,\xff\xfe\n", "is not CSV"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "bad"
    file.write_bytes(content)
    with pytest.raises(LandscapeError, match=says):
        read_claims(file, SPACES)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *(("config", "{'a': 1}"), ("predicted", "yes"), ("median_us", "fast")),
        *(("median_us", text) for text in ("1_0", "\uff15", " 5", "+5")),
    ],
)
def test_a_bad_cell_is_named(board: Leaderboard, tmp_path: Path, column: str, cell: str) -> None:
    fill(board, 1)
    rows = list(csv.DictReader(io.StringIO(rows_csv(everything(board)))))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerow(rows[0] | {column: cell})
    file = tmp_path / "bad.csv"
    file.write_text(text.getvalue())
    with pytest.raises(LandscapeError, match=rf"line 2\.{column}: cannot be"):
        read_claims(file, SPACES)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda row: row.update(family="secret"), "family 'secret' is not known here"),
        (lambda row: row["config"].update(THREADS=31), "scalar.THREADS cannot be '31' here"),
        (lambda row: row["config"].update(STAGES=True), "scalar.STAGES cannot be 'True' here"),
        (lambda row: row["config"].update(EXTRA=1), "family scalar has other tunables here"),
        (lambda row: row.update(median_us=None), "without a time"),
        (lambda row: row.update(problem="1x2x64x64"), "problem '1x2x64x64' is not the key of a problem"),
        (lambda row: row.update(problem="1x2x64x64-fp16 "), "problem '1x2x64x64-fp16 ' is not the key of a problem"),
        (
            lambda row: row.update(problem="\uff11x2x64x64-fp16"),
            "problem '\uff11x2x64x64-fp16' is not the key of a problem",
        ),
    ],
)
def test_configs_that_cannot_be_evaluated_are_left_out_with_a_reason(
    board: Leaderboard, tmp_path: Path, edit: Callable[[dict[str, Any]], None], reason: str
) -> None:
    vetted = read_claims(edited(board, tmp_path / "rows.json", lambda document: edit(document["rows"][0])), SPACES)
    assert vetted.left_out[reason] == 1
    assert len(vetted.configs) == 1


def imported(board: Leaderboard, folder: Path) -> tuple[Leaderboard, Vetted]:
    """Another leaderboard with the rows of this one imported."""
    fill(board)
    file = folder / "rows.json"
    file.write_text(rows_json(everything(board)))
    vetted = read_claims(file, SPACES)
    other = open_board(folder, "other.db")
    assert other.add_imports(vetted.configs) == 20
    return other, vetted


def test_claims_are_never_ranked(board: Leaderboard, tmp_path: Path) -> None:
    other, vetted = imported(board, tmp_path)
    study = other.open_study(key_of(H200, PROBLEM))
    assert everything(other) == []
    assert other.elites(study) == []
    assert other.champion(study.scope) is None
    assert other.evaluated(study) == 0
    assert other.imports(PROBLEM.key) == list(vetted.configs)
    assert other.imports("another") == []
    assert other.add_imports(vetted.configs) == 0, "a second import adds nothing"


def test_the_best_claims_are_the_seeds_of_a_search(board: Leaderboard, tmp_path: Path) -> None:
    other, vetted = imported(board, tmp_path)
    study = other.open_study(key_of(H200, PROBLEM))
    starts = imported_starts(other, study, FamilySpaces((VALID,)))
    assert starts == [one.config for one in vetted.configs][:MAX_IMPORTS]
    elsewhere = other.open_study(key_of(H200, parse_problem("small")))
    assert imported_starts(other, elsewhere, FamilySpaces((VALID,))) == []


def test_a_file_of_an_older_version_has_no_claims(tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "old.db"
    with sqlite3.connect(file) as connection:
        connection.executescript((Path(__file__).parents[1] / "leaderboard" / "version_1.sql").read_text())
    connection.close()
    with Leaderboard(f"sqlite:///{file}") as old:
        assert old.imports() == []
