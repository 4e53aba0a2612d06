"""``leaderboard export`` and ``leaderboard import``: rows for other programs, and configs from them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.cli.options.verbosity import say
from evoengine.cli.output.console import command_name, make_console, print_json
from evoengine.cli.output.files import write_whole
from evoengine.cli.verbs.export import export_record
from evoengine.cli.verbs.leaderboard import RowQuery, find_rows, ranking_of
from evoengine.engine.families import space_of_row
from evoengine.errors import NothingFoundError, UsageError
from evoengine.export.robust_kbench import task_files
from evoengine.interop.rbk import RbkConfig, RbkShape, rbk_csv, rbk_markdown, rbk_report, read_rbk_config
from evoengine.interop.result_files import Vetted, read_claims
from evoengine.interop.rows import rows_csv, rows_json
from evoengine.interop.t4 import t4_results
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Record, Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.warmstart.resume import MAX_IMPORTS
from evoengine.space.language.loader import family_names, find_space

FORMATS: Final = ("json", "csv", "t4", "rbk", "robust-kbench")
_STDOUT: Final = Path("-")


@dataclass(frozen=True)
class ExportRequest:
    """Which rows, and as what."""

    output: Path
    format: str
    problem: str | None = None
    device: str | None = None
    family: str | None = None
    status: str = "ok"
    problems: Path | None = None
    """``rbk_config.yaml``, for an rbk report."""
    force: bool = False


def export_rows(db: str, request: ExportRequest) -> None:
    """Writes a file, or the files of a folder.

    Raises:
        UsageError: no such format, a file that exists, rows that do not fit the format.
        NothingFoundError: there are no such rows.
    """
    if request.format not in FORMATS:
        raise UsageError(f"unknown format '{request.format}': choose one of {', '.join(FORMATS)}")
    if request.problems is not None and request.format != "rbk":
        raise UsageError("--problems names what an rbk report tells of: give --format rbk with it")
    with Leaderboard(database_url(db), create=False) as board:
        query = RowQuery(request.problem, request.device, request.status)
        rows = [row for row in find_rows(board, query) if request.family in (None, row.family)]
        if not rows:
            raise NothingFoundError(f"{db} has no such rows: 'leaderboard --status all' lists what there is")
        files = _files(board, rows, request)
    _write(files, request)


def _files(board: Leaderboard, rows: list[Row], request: ExportRequest) -> dict[str, str]:
    """Texts by file name; the name is empty where the output is one file."""
    match request.format:
        case "json":
            return {"": rows_json(rows)}
        case "csv":
            return {"": rows_csv(rows)}
        case "t4":
            return {"": _t4(board, rows)}
        case "rbk":
            return _rbk(board, rows, request.problems)
        case _:
            return _task(board, rows)


def _t4(board: Leaderboard, rows: list[Row]) -> str:
    kinds = {(row.family, row.problem, row.device, row.arch, row.predicted, row.method) for row in rows}
    if len(kinds) > 1:
        raise UsageError(
            f"T4 results are of one family, problem and device, and these rows are of {len(kinds)}: narrow them with "
            "--family, --problem and --device"
        )
    records = [board.get(row.id) for row in rows]
    if records[0].study.key.workload is not None:
        raise UsageError(f"T4 results are of one problem, and {rows[0].problem} is a workload: narrow with --problem")
    document = t4_results(records, space_of_row(records[0], None))
    return json.dumps(document, indent=1) + "\n"


def _rbk(board: Leaderboard, rows: list[Row], problems: Path | None) -> dict[str, str]:
    champions = _champions(board, rows)
    if problems is None:
        found = champions.items()  # a workload, a mean over problems, is no shape
        shapes = tuple(RbkShape(key, one.study.key.problem) for key, one in found if one.study.key.workload is None)
        config = RbkConfig(shapes, ".", save_json=True, save_csv=False, save_markdown=True)
    else:
        config = read_rbk_config(problems)
    report = rbk_report(config.shapes, champions)
    files = {"rbk_report.json": json.dumps(report, indent=2) + "\n"} if config.save_json else {}
    if config.save_csv:
        files["rbk_report.csv"] = rbk_csv(report)
    if config.save_markdown:
        files["rbk_report.md"] = rbk_markdown(report)
    return files


def _champions(board: Leaderboard, rows: list[Row]) -> dict[str, Record]:
    """The row to report for each problem: its champion, else its fastest.

    Raises:
        UsageError: a problem was searched on several devices, whose times must not be mixed.
    """
    best: dict[str, Row] = {}
    for row in rows:
        if row.rank is None:
            continue
        known = best.setdefault(row.problem, row)
        if ranking_of(known) != ranking_of(row):
            raise UsageError(f"{row.problem} has times of several devices or methods: choose one with --device")
        if row.champion:
            best[row.problem] = row
    return {problem: board.get(row.id) for problem, row in best.items()}


def _task(board: Leaderboard, rows: list[Row]) -> dict[str, str]:
    champions = _champions(board, rows)
    if len(champions) != 1:
        raise UsageError(f"a task is of one problem, and these rows are of {len(champions)}: choose one with --problem")
    return task_files(export_record(next(iter(champions.values()))))


def _write(files: Mapping[str, str], request: ExportRequest) -> None:
    if "" in files and request.output == _STDOUT:
        sys.stdout.write(files[""])
        return
    if request.output == _STDOUT:
        raise UsageError(f"{request.format} writes several files: name a folder with -o")
    paths = {request.output / name if name else request.output: text for name, text in files.items()}
    existing = [path for path in paths if path.exists()]
    if existing and not request.force:
        raise UsageError(f"{existing[0]} exists: give --force to overwrite it, or another -o")
    if "" not in files:
        try:
            request.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{request.output}: cannot be made: {error.strerror}") from error
    for path, text in paths.items():
        write_whole(path, text)
        say(f"wrote {path}")


def import_rows(db: str, file: Path, family: str | None, *, json_output: bool) -> None:
    """Takes the configs of a file as claims.

    Raises:
        LandscapeError: the file is malformed.
        NothingFoundError: nothing in it can be tried here.
    """
    vetted = read_claims(file, {name: find_space(name) for name in family_names()}, family)
    if not vetted.configs:
        reasons = "; ".join(f"{count} {reason}" for reason, count in vetted.left_out.items()) or "it has no rows"
        raise NothingFoundError(f"{file}: nothing in it can be tried here: {reasons}")
    with Leaderboard(database_url(db)) as board:
        new = board.add_imports(vetted.configs)
    if json_output:
        print_json(
            {
                "file": str(file),
                "rows": vetted.rows,
                "imported": len(vetted.configs),
                "new": new,
                "left_out": dict(vetted.left_out),
                "problems": sorted({one.problem for one in vetted.configs}),
                "proven": False,
            }
        )
        return
    _tell(file, vetted, new)


def _tell(file: Path, vetted: Vetted, new: int) -> None:
    console = make_console()
    say = console.print
    say(f"{file}: {vetted.rows} rows; {len(vetted.configs)} configs can be tried here, {new} of them new", markup=False)
    for reason, count in vetted.left_out.items():
        say(f"left out  {count}: {reason}", markup=False)
    say("UNPROVEN: they are kept apart, not ranked, and their times are not compared with any of yours")
    say(
        f"next      {command_name()} search on the same problem renders the {MAX_IMPORTS} that claim most from the "
        "templates here, and compiles, checks and times them first",
        markup=False,
    )
    for problem in sorted({one.problem for one in vetted.configs}):
        count = sum(one.problem == problem for one in vetted.configs)
        say(f"          {problem}: {count}", markup=False)
