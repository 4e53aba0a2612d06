"""``compare``: prints our kernel and every installed library in one table."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from evoengine.bench.compare_result import (
    HEADINGS,
    Comparison,
    ComparisonRow,
    PeerStatus,
    cells,
    document,
    facts,
    markdown,
)
from evoengine.bench.compare_run import CompareProgress
from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.verbosity import is_verbose, note
from evoengine.documents.escaping import printable
from evoengine.engine.compare import compare
from evoengine.engine.options.verbs import CompareOptions
from evoengine.engine.rows.queries import newest_problem_note
from evoengine.engine.rows.reference import parse_row
from evoengine.errors import UsageError
from evoengine.system.files import refuse_database, write_file


def run_compare(options: CompareOptions, *, json_output: bool, markdown_file: Path | None) -> None:
    """Measures, prints the table or JSON, and writes the Markdown file.

    Raises:
        UsageError: A library or row is unknown, or the file cannot be written.
        MissingDependencyError: There is no GPU, or a package that reaches it is missing.
    """
    if markdown_file is not None and not markdown_file.absolute().parent.is_dir():
        raise UsageError(f"{markdown_file}: there is no folder {markdown_file.parent}")
    if markdown_file is not None:
        refuse_database(markdown_file)
    notes = make_console(stderr=True)
    comparison = compare(options, CompareProgress(lambda text: notes.print(f"… {text}", markup=False), _show_output))
    if options.problem is None and parse_row(options.row).row_id is None:
        note(newest_problem_note(options.db, comparison.problem))
    if markdown_file is not None:
        write_file(markdown_file, markdown(comparison))
    if json_output:
        print_json(document(comparison))
    else:
        print_comparison(comparison)


def _show_output(name: str, text: str) -> None:
    """Prints what the libraries printed, with ``--verbose`` only: their tuners write hundreds of lines."""
    if is_verbose():
        for line in text.splitlines():
            typer.echo(f"{name}: {line}", err=True)


def print_comparison(comparison: Comparison) -> None:
    """Prints the facts, the table and the verdict."""
    console = make_console()
    for name, value in facts(comparison):
        console.print(f"{name:<9} {value}", markup=False)
    console.print()
    print_table(console, _table(comparison.rows))
    console.print()
    console.print(comparison.verdict, markup=False)


def _table(rows: tuple[ComparisonRow, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in HEADINGS[:-1]:
        table.add_column(name, justify="left" if name == HEADINGS[0] else "right", no_wrap=True)
    table.add_column(HEADINGS[-1], overflow="fold")
    for row in rows:
        style = "bold" if row.ours else "red" if row.outcome == PeerStatus.WRONG.value else None
        table.add_row(*map(printable, cells(row)), style=style)
    return table
