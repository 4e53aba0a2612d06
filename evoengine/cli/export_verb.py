"""``export``: one row of the leaderboard as a file of its own."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import typer

from evoengine.cli.files import write_whole
from evoengine.cli.leaderboard_verb import RowQuery, find_rows
from evoengine.cli.options import database_url
from evoengine.errors import CandidateError, NothingFoundError, UsageError
from evoengine.export import ExportRecord, export_cu
from evoengine.kernel.artifact import Source
from evoengine.kernel.template import TemplateLibrary
from evoengine.leaderboard.records import Record, Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo
from evoengine.space.loader import find_space
from evoengine.space.locate import data_dir
from evoengine.target import TARGETS, get_target, target_for_gpu


def run_export(
    row_id: int | None, *, best: bool, output: str, problem: str | None, device: str | None, db: str, force: bool
) -> None:
    """Writes the ``.cu`` file of one row.

    Raises:
        UsageError: both or neither of id and ``best``, an existing file without ``force``, a row without source.
        NothingFoundError: ``best``, and there is no correct row.
    """
    if best == (row_id is not None):
        raise UsageError("say what to export: either --best or the id of a row, which 'leaderboard' lists")
    path = None if output == "-" else Path(output)
    if path is not None and path.exists() and not force:
        raise UsageError(f"{path} exists: give --force to overwrite it, or another -o")
    with Leaderboard(database_url(db), create=False) as board:
        found = _best_id(board, problem, device, db) if row_id is None else row_id
        record = board.get(found)
    text = export_cu(_export_record(record))
    if path is None:
        sys.stdout.write(text)
        return
    write_whole(path, text)
    _tell(path, record.row)


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


def _export_record(record: Record) -> ExportRecord:
    if not record.evaluation.source:
        raise UsageError(f"row {record.row.id} ended as {record.row.status.value} and has no source to export")
    rendered = _rendered_again(record)
    if rendered.template_hash != record.evaluation.template_hash:
        message = f"the template changed since row {record.row.id} was evaluated; its launch follows the new one"
        typer.echo(f"warning: {message}: let the file check itself", err=True)
    row = record.row
    return ExportRecord(
        problem=record.study.key.problem,
        evaluation=record.evaluation,
        device=DeviceInfo(row.device_kind, row.device, row.arch, row.predicted, record.driver, record.nvrtc),
        launch=rendered.launch,
        maxrregcount=rendered.maxrregcount,
        row_id=str(row.id),
        evaluated_at=row.created_at.isoformat(sep=" ", timespec="seconds") + " UTC",
        exported_at=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def _rendered_again(record: Record) -> Source:
    """The source rendered anew, for its launch plan: the leaderboard keeps the text only."""
    row = record.row
    known = {target.marketing_name: target for target in TARGETS.values()}
    gpu = known.get(row.device) or target_for_gpu(row.device) or get_target("l4")
    target = gpu.compiled_for(row.arch)
    try:
        template = TemplateLibrary(data_dir("templates")).load(row.family)
        return template.render(record.evaluation.config, record.study.key.problem, find_space(row.family), target)
    except CandidateError as error:
        raise UsageError(f"row {row.id} belongs to an older template, its launch is not known: {error}") from error


def _tell(path: Path, row: Row) -> None:
    time = (
        "no time" if row.median_us is None else f"{row.median_us:.2f} us {'predicted' if row.predicted else 'measured'}"
    )
    typer.echo(f"wrote {path}: row {row.id}, {row.problem} on {row.device}, {time}")
    program = path.with_suffix("")
    call = program if program.parent != Path() else f"./{program}"
    source, binary, run = (shlex.quote(str(word)) for word in (path, program, call))
    typer.echo(f"next: nvcc -arch={row.arch} {source} -o {binary} && {run}")
