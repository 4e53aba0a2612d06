"""``export``: rows of the leaderboard as files of their own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from evoengine.cli.options.shared_options import DEFAULT_DB
from evoengine.cli.options.verbosity import say
from evoengine.cli.output.files import write_whole
from evoengine.cli.verbs.leaderboard import RowQuery, find_rows
from evoengine.engine.families import space_of_row
from evoengine.errors import CandidateError, NothingFoundError, UsageError
from evoengine.export import ExportRecord, nvcc_target
from evoengine.export.files import ExportFile, export_files
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.records import Source
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Record, Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo
from evoengine.space.data_dirs import data_dir
from evoengine.target import TARGETS, get_target, target_for_gpu

_SUFFIXES: Final[Mapping[str, str]] = {"cu": "cu", "torch": "py", "header": "h", "cubin": "cubin", "ptx": "ptx"}


@dataclass(frozen=True)
class ExportRequest:
    """The options of ``export``."""

    output: str
    row_id: int | None = None
    best: bool = False
    format: str = "cu"
    problem: str | None = None
    problems: str | None = None
    """Several, with commas between."""
    every: bool = False
    device: str | None = None
    db: str = DEFAULT_DB
    force: bool = False
    space_file: Path | None = None
    """What the search was given with ``--space``; None for the family's own."""


def run_export(request: ExportRequest) -> None:
    """Writes one kernel, or several that one file chooses among.

    Raises:
        UsageError: not exactly one way to say what to export, a format that does not hold it, an existing file without
            ``force``, a row without source.
        NothingFoundError: there is no correct row.
    """
    ways = [request.row_id is not None, request.best, request.problems is not None, request.every]
    if sum(ways) != 1:
        raise UsageError(
            "say what to export: the id of a row, which 'leaderboard' lists, or --best, or --problems, or --all"
        )
    to_terminal = request.output == "-"
    path = Path(f"best.{_SUFFIXES.get(request.format, 'cu')}") if to_terminal else Path(request.output)
    if not to_terminal:
        _refuse_to_overwrite([path], request)
    with Leaderboard(database_url(request.db), create=False) as board:
        stored = [board.get(row_id) for row_id in _chosen(board, request)]
    records = [export_record(item, request.space_file) for item in stored]
    files = export_files(request.format, records, path.name, default_cache_dir())
    if to_terminal:
        if len(files) > 1:
            raise UsageError(f"format {request.format} is several files: give -o a file name")
        sys.stdout.write(str(files[0].content))
        return
    _refuse_to_overwrite([path.with_name(file.name) for file in files], request)
    for file in files:
        write_whole(path.with_name(file.name), file.content)
    _tell(path, files, request.format, [item.row for item in stored])


def _refuse_to_overwrite(paths: Sequence[Path], request: ExportRequest) -> None:
    for path in paths:
        if path.exists() and not request.force:
            raise UsageError(f"{path} exists: give --force to overwrite it, or another -o")


def _chosen(board: Leaderboard, request: ExportRequest) -> list[int]:
    """Ids of the rows to export."""
    if request.row_id is not None:
        return [request.row_id]
    if request.best:
        return [_best_id(board, request.problem, request.device, request.db)]
    if request.problems is not None:
        names = [name.strip() for name in request.problems.split(",")]
        found = [board.get(_best_id(board, name, request.device, request.db)).row for name in names]
        if len({(row.device_kind, row.device, row.arch) for row in found}) > 1:
            raise UsageError("the newest rows of these problems are of several devices: name one with --device")
        return list(dict.fromkeys(row.id for row in found))
    return _every_best(board, request)


def _every_best(board: Leaderboard, request: ExportRequest) -> list[int]:
    """The best row of each problem on the device that was searched on last."""
    rows = find_rows(board, RowQuery(None, request.device))
    if not rows:
        raise NothingFoundError(f"{request.db} holds no correct kernel: run a search first")
    newest = max(rows, key=lambda row: row.id)
    same = [row for row in rows if _ranking(row)[1:] == _ranking(newest)[1:]]
    best: dict[str, Row] = {}
    for row in same:  # the best of each problem stands first, but its champion goes before it
        if row.problem not in best or (row.champion and not best[row.problem].champion):
            best[row.problem] = row
    return [row.id for row in best.values()]


def _best_id(board: Leaderboard, problem: str | None, device: str | None, db: str) -> int:
    """The champion of the ranking that was added to last, or its fastest row when it has no champion."""
    rows = find_rows(board, RowQuery(problem, device))
    if not rows:
        what = f" for problem {problem}" if problem else ""
        raise NothingFoundError(f"{db} holds no correct kernel{what}: run a search first")
    newest = max(rows, key=lambda row: row.id)
    ranking = [row for row in rows if _ranking(row) == _ranking(newest)]
    return next((row.id for row in ranking if row.champion), ranking[0].id)


def _ranking(row: Row) -> tuple[object, ...]:
    return row.problem, row.device_kind, row.device, row.arch, row.predicted, row.method


def export_record(record: Record, space_file: Path | None = None) -> ExportRecord:
    """What an export needs to know of a row.

    Raises:
        UsageError: its kernel is not there, or cannot be launched any more.
    """
    if record.row.device_kind == "replay":
        raise UsageError(f"row {record.row.id} is a replayed one: its kernel was not built here, so there is no source")
    if not record.evaluation.source:
        raise UsageError(f"row {record.row.id} ended as {record.row.status.value} and has no source to export")
    rendered = rendered_again(record, space_file)
    if rendered.template_hash != record.evaluation.template_hash:
        message = f"the template changed since row {record.row.id} was evaluated; its launch follows the new one"
        typer.echo(f"warning: {message}: let the file check itself", err=True)
    row = record.row
    return ExportRecord(
        problem=record.study.key.problem,
        evaluation=record.own_evaluation,
        device=DeviceInfo(row.device_kind, row.device, row.arch, row.predicted, record.driver, record.nvrtc),
        launch=rendered.launch,
        maxrregcount=rendered.maxrregcount,
        row_id=str(row.id),
        evaluated_at=row.created_at.isoformat(sep=" ", timespec="seconds") + " UTC",
        exported_at=datetime.now(UTC).strftime("%Y-%m-%d"),
        only_arch=TemplateLibrary(data_dir("templates")).load(row.family).meta.only_arch or "",
    )


def rendered_again(record: Record, space_file: Path | None = None) -> Source:
    """The source rendered anew, for its launch plan: the leaderboard keeps the text only.

    Raises:
        UsageError: the template does not take the config any more, or the file is of another family.
    """
    row = record.row
    known = {target.marketing_name: target for target in TARGETS.values()}
    gpu = known.get(row.device) or target_for_gpu(row.device) or get_target("l4")
    target = gpu.compiled_for(row.arch)
    space = space_of_row(record, space_file)
    try:
        template = TemplateLibrary(data_dir("templates")).load(row.family)
        return template.render(record.evaluation.config, record.study.key.problem, space, target)
    except CandidateError as error:
        place = space_file or f"the packaged space of {row.family}"
        raise UsageError(
            f"row {row.id} does not fit {place} ({error}): it belongs to an older template, or its "
            "search had a --space FILE, which is to be given here too"
        ) from error


def _tell(path: Path, files: Sequence[ExportFile], kind: str, rows: Sequence[Row]) -> None:
    for row in rows:
        kind_of_time = "predicted" if row.predicted else "measured"
        time = "no time" if row.median_us is None else f"{row.median_us:.2f} us {kind_of_time}"
        say(f"wrote {path}: row {row.id}, {row.problem} on {row.device}, {time}")
    for file in files[1:]:
        say(f"wrote {path.with_name(file.name)}")
    program = path.with_suffix("")
    call = program if program.parent != Path() else f"./{program}"
    source, binary, run = (shlex.quote(str(word)) for word in (path, program, call))
    following = {
        "cu": f"nvcc {nvcc_target(rows[0].arch)} {source} -o {binary} && {run}",
        "header": f"nvcc -x cu {nvcc_target(rows[0].arch)} -DEVO_ATTENTION_MAIN {source} -o {binary} && {run}",
        "torch": f"python {source}",
    }
    test = shlex.quote(str(path.with_name(files[-1].name)))
    say(f"next: {following.get(kind, f'python {test}')}")
