"""``export``: writes rows of the leaderboard as standalone files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from evoengine.cli.output.run_summary import times_text
from evoengine.cli.output.verbosity import note, say, warn
from evoengine.engine.options.verbs import ExportOptions, RowChoice
from evoengine.engine.rows.kernels import export_record
from evoengine.engine.rows.queries import best_record, best_records, find_record, shortlist_records
from evoengine.errors import UsageError
from evoengine.export import nvcc_target
from evoengine.export.files import ExportFile, export_files
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.records import Record, Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.system.files import names_stdout, refuse_existing, write_file

_SUFFIXES: Final[Mapping[str, str]] = {"cu": "cu", "torch": "py", "header": "h", "cubin": "cubin", "ptx": "ptx"}
_CHOICE: Final = "  # on the GPU: times the kernels and remembers the fastest"


def run_export(options: ExportOptions) -> None:
    """Writes one kernel, or several kernels that one file chooses among.

    Raises:
        UsageError: Not exactly one selection is given, the format does not hold it, a file exists and ``force`` is not
            given, or a row has no source.
        NothingFoundError: There is no correct row.
    """
    selections = [
        options.row is not None,
        options.best,
        options.problems is not None,
        options.every,
        options.top is not None,
    ]
    if sum(selections) != 1:
        raise UsageError(
            "nothing or too much is selected for export: give one of a row (best, rank:N or an id), --best, "
            "--problems, --all and --top"
        )
    if options.top is not None and options.format != "torch":
        raise UsageError(f"--top needs a module that measures, not format {options.format}: give --format torch")
    to_terminal = names_stdout(Path(options.output))
    path = Path(f"best.{_SUFFIXES.get(options.format, 'cu')}") if to_terminal else Path(options.output)
    if not to_terminal:
        refuse_existing([path], force=options.force)
    rows, records = [], []
    with Leaderboard(database_url(options.db), create=False) as board:
        for item in _chosen(board, options):  # one by one: the first source that cannot be verified ends the export
            rows.append(item.row)
            records.append(export_record(item, options.space_file, warn, trust_source=options.trust_source))
    files = export_files(options.format, records, path.name, default_cache_dir())
    if to_terminal:
        if len(files) > 1:
            raise UsageError(f"format {options.format} is several files: give -o a file name")
        write_file(Path(options.output), files[0].content)
        return
    refuse_existing([path.with_name(file.name) for file in files], force=options.force)
    for file in files:
        write_file(path.with_name(file.name), file.content)
    _report(path, files, options.format, rows)


def _chosen(board: Leaderboard, options: ExportOptions) -> Iterable[Record]:
    """Rows to export, which are read one by one: a small file may hold 16 MiB of source per row."""
    if options.row is not None or options.best:
        one = find_record(board, RowChoice(options.row or "best", options.problem, options.device), options.db)
        note(one.note)
        return [one.record]
    if options.problems is not None:
        names = [name.strip() for name in options.problems.split(",")]
        best = [best_record(board, name, options.device, options.db) for name in names]
        found = {record.row.id: record for record in best}
        if len({(one.row.device_kind, one.row.device, one.row.arch) for one in found.values()}) > 1:
            raise UsageError("the newest rows of these problems are of several devices: name one with --device")
        return list(found.values())
    if options.top is not None:
        return shortlist_records(board, options.problem, options.device, options.top, options.db)
    return best_records(board, options.device, options.db)


def _report(path: Path, files: Sequence[ExportFile], kind: str, rows: Sequence[Row]) -> None:
    for (problem, device), group in groupby(rows, key=lambda row: (row.problem, row.device)):
        found = list(group)
        what = f"row {found[0].id}" if len(found) == 1 else f"{len(found)} kernels"
        say(f"wrote {path}: {what}, {problem} on {device}, {times_text(found)}")
    for file in files[1:]:
        say(f"wrote {path.with_name(file.name)}")
    program = path.with_suffix("") if path.suffix else path.with_name(f"{path.name}.out")
    call = program if program.parent != Path() else f"./{program}"
    source, binary, run = (shlex.quote(str(word)) for word in (_no_option(path), _no_option(program), call))
    language = "" if path.suffix == ".cu" else "-x cu "
    following = {
        "cu": f"nvcc {language}{nvcc_target(rows[0].arch)} {source} -o {binary} && {run}",
        "header": f"nvcc -x cu {nvcc_target(rows[0].arch)} -DEVO_ATTENTION_MAIN {source} -o {binary} && {run}",
        "torch": f"python {source}{_CHOICE * (len(rows) > len({row.problem for row in rows}))}",
    }
    test = shlex.quote(_no_option(path.with_name(files[-1].name)))
    say(f"next: {following.get(kind, f'python {test}')}")


def _no_option(path: Path) -> str:
    """Returns the path in a form that no program reads as an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)
