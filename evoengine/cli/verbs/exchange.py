"""``leaderboard export`` and ``leaderboard import``: rows for other programs, and their configs as starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console

from evoengine.cli.output.console import command_name, make_console, print_json
from evoengine.cli.output.verbosity import say_wrote, warn
from evoengine.engine.options.verbs import RowExportOptions
from evoengine.engine.rows.kernels import export_record
from evoengine.engine.rows.queries import ALL_ROWS, best_of, find_rows, stored_problems
from evoengine.engine.rows.space import space_of_row
from evoengine.errors import NothingFoundError, UsageError
from evoengine.export.robust_kbench import task_files
from evoengine.interop.rbk import RbkConfig, RbkShape, rbk_csv, rbk_markdown, rbk_report, read_rbk_config
from evoengine.interop.result_files import Vetted, read_claims
from evoengine.interop.rows import rows_csv, rows_json
from evoengine.interop.t4 import t4_results
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.records import Record, Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.warmstart.resume import MAX_IMPORTS
from evoengine.space.loader import family_names, find_space
from evoengine.system.files import names_stdout, refuse_existing, write_file

FORMATS: Final = ("json", "csv", "t4", "rbk", "robust-kbench")
_MOST_LINES: Final = 20
"""Maximum number of problems, and of reasons, that an import prints."""


def export_rows(db: str, options: RowExportOptions) -> None:
    """Writes a file, or the files of a folder.

    Args:
        db: Leaderboard.
        options: Selection of rows, format and output.

    Raises:
        UsageError: The format is unknown, a file exists, or the rows do not fit the format.
        NothingFoundError: No row matches.
    """
    if options.format not in FORMATS:
        raise UsageError(f"unknown format '{options.format}': choose one of {', '.join(FORMATS)}")
    if options.problems is not None and options.format != "rbk":
        raise UsageError("--problems names the problems of an rbk report: give --format rbk with it")
    with Leaderboard(database_url(db), create=False) as board:
        query = replace(ALL_ROWS, problem=options.problem, device=options.device, status=options.status)
        rows = [row for row in find_rows(board, query) if options.family in (None, row.family)]
        if not rows:
            raise NothingFoundError(
                f"{database_name(db)}: no row matches: 'leaderboard --status all' lists all rows; stored: "
                f"{stored_problems(board) or 'nothing'}"
            )
        files = _files(board, rows, options)
    _write(files, options)


def _files(board: Leaderboard, rows: list[Row], options: RowExportOptions) -> dict[str, str]:
    """Texts by file name; the name is empty if the output is one file."""
    match options.format:
        case "json":
            return {"": rows_json(rows)}
        case "csv":
            return {"": rows_csv(rows)}
        case "t4":
            return {"": _t4(board, rows)}
        case "rbk":
            return _rbk(board, rows, options.problems)
        case _:
            return _task(board, rows, trust_source=options.trust_source)


def _t4(board: Leaderboard, rows: list[Row]) -> str:
    kinds = {(row.family, row.problem, row.device, row.arch, row.predicted, row.method) for row in rows}
    if len(kinds) > 1:
        raise UsageError(
            f"T4 results hold one family, problem and device, and these rows are of {len(kinds)}: select one with "
            "--family, --problem and --device"
        )
    records = [_without_source(record) for record in board.records(row.id for row in rows)]
    if not records:
        raise NothingFoundError("no row is left without the damaged ones: restore a copy, or search again")
    if records[0].study.key.workload is not None:
        raise UsageError(
            f"T4 results hold one problem, and {rows[0].problem} is a workload: select a problem with --problem"
        )
    document = t4_results(records, space_of_row(records[0], None))
    return json.dumps(document, indent=1) + "\n"


def _without_source(record: Record) -> Record:
    """Drops the source, of which a small file may hold 16 MiB per row."""
    return replace(record, evaluation=replace(record.evaluation, source=""))


def _rbk(board: Leaderboard, rows: list[Row], problems: Path | None) -> dict[str, str]:
    champions = _champions(board, rows)
    if problems is None:
        found = champions.items()  # a workload has no shape
        shapes = tuple(RbkShape(key, one.study.key.problem) for key, one in found if one.study.key.workload is None)
        config = RbkConfig(shapes, ".", save_json=True, save_csv=False, save_markdown=True)
    else:
        config = read_rbk_config(problems)
    report = rbk_report(config.shapes, champions)
    files = {"rbk_report.json": json.dumps(report, indent=2, allow_nan=False) + "\n"} if config.save_json else {}
    if config.save_csv:
        files["rbk_report.csv"] = rbk_csv(report)
    if config.save_markdown:
        files["rbk_report.md"] = rbk_markdown(report)
    return files


def _champions(board: Leaderboard, rows: list[Row]) -> dict[str, Record]:
    """The row to report for each problem, without its source: its champion, else its fastest.

    Raises:
        UsageError: A problem was searched on several devices, whose times must not be mixed.
    """
    ranked: dict[str, list[Row]] = {}
    for row in rows:
        if row.rank is None:
            continue
        known = ranked.setdefault(row.problem, [])
        if known and known[0].scope != row.scope:
            raise UsageError(f"{row.problem} has times of several devices or methods: choose one with --device")
        known.append(row)
    best = ((problem, best_of(board, ranking)) for problem, ranking in ranked.items())
    return {problem: _without_source(record) for problem, record in best if record is not None}


def _task(board: Leaderboard, rows: list[Row], *, trust_source: bool) -> dict[str, str]:
    champions = _champions(board, rows)
    if len(champions) != 1:
        raise UsageError(f"a task holds one problem, and these rows are of {len(champions)}: choose one with --problem")
    (champion,) = champions.values()
    return task_files(export_record(board.get(champion.row.id), None, warn, trust_source=trust_source))


def _write(files: Mapping[str, str], options: RowExportOptions) -> None:
    if "" not in files and names_stdout(options.output):
        raise UsageError(f"{options.format} writes several files: name a folder with -o")
    paths = {options.output / name if name else options.output: text for name, text in files.items()}
    refuse_existing(paths, force=options.force)
    if "" not in files:
        try:
            options.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{options.output}: cannot be created: {error.strerror}") from error
    for path, text in paths.items():
        write_file(path, text)
        say_wrote(path, f"wrote {path}")


def import_rows(db: str, file: Path, family: str | None, *, json_output: bool) -> None:
    """Stores the configs of a file as starts of later searches; their times are not trusted.

    Args:
        db: Leaderboard.
        file: Rows of another leaderboard or tuner.
        family: Kernel family of T4 results, which do not name it.
        json_output: Whether to print JSON.

    Raises:
        LandscapeError: The file is malformed.
        NothingFoundError: No config in it can be tried here.
    """
    vetted = read_claims(file, {name: find_space(name) for name in family_names()}, family)
    if not vetted.configs:
        reasons = "; ".join(f"{count} {reason}" for reason, count in vetted.left_out.items()) or "it has no rows"
        raise NothingFoundError(f"{file}: no config can be tried here: {reasons}")
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
    _report(file, vetted, new)


def _report(file: Path, vetted: Vetted, new: int) -> None:
    console = make_console()
    usable = len(vetted.configs)
    stored = f", {usable - new} already in the leaderboard" if new < usable else ""
    console.print(
        f"{file}: {vetted.rows} rows; {usable} configs can be tried here, {new} of them new{stored}", markup=False
    )
    _print_counts(console, "left out  {count}: {name}", vetted.left_out)
    console.print("UNPROVEN: imported configs are not ranked, and their times are not compared with measured ones")
    console.print(
        f"next      {command_name()} search on the same problem compiles, checks and times the {MAX_IMPORTS} with the "
        "best claimed times first",
        markup=False,
    )
    _print_counts(console, "          {name}: {count}", Counter(sorted(one.problem for one in vetted.configs)))


def _print_counts(console: Console, line: str, counts: Mapping[str, int]) -> None:
    """Prints a line for each name, as far as they fit on a screen: a file may have a name per row."""
    for name, count in islice(counts.items(), _MOST_LINES):
        console.print(line.format(name=name, count=count), markup=False)
    if len(counts) > _MOST_LINES:
        console.print(f"          and {len(counts) - _MOST_LINES:,} more; --json lists all", markup=False)
