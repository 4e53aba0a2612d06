"""``report``: one study as an HTML page."""

from __future__ import annotations

from datetime import UTC, datetime

from evoengine.cli.options.verbosity import say
from evoengine.cli.output.console import command_name, print_json
from evoengine.engine.row_queries import select_study
from evoengine.engine.verb_options import ReportOptions
from evoengine.errors import UsageError
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.report.facts import gather
from evoengine.report.page import render_page
from evoengine.system.files import refuse_existing, write_file


def run_report(options: ReportOptions, *, json_output: bool) -> None:
    """Writes the page of one study.

    Raises:
        UsageError: The file exists, or cannot be written.
        StoreError: There is no such study.
        NothingFoundError: The problem or device has no study.
        MissingDependencyError: Plotly is not installed.
    """
    refuse_existing([options.output], force=options.force)
    with Leaderboard(database_url(options.db), create=False) as board:
        facts = gather(board, _study_id(board, options))
    text = render_page(facts, program=command_name(), written_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    write_file(options.output, text)
    if json_output:
        rows, predicted = len(facts.rows), facts.predicted
        print_json({"file": str(options.output), "study_id": facts.study.id, "rows": rows, "predicted": predicted})
        return
    kind = "PREDICTED" if facts.predicted else "measured"
    where = f"{facts.subject} on {facts.study.scope.device}, times {kind}"
    say(f"wrote {options.output}: study {facts.study.id}, {len(facts.rows)} candidates, {where}")


def _study_id(board: Leaderboard, options: ReportOptions) -> int | None:
    """The study that the options select; None for the newest."""
    if options.problem is None and options.device is None:
        return options.study
    if options.study is not None:
        raise UsageError("a study's id already selects one: leave out either it or --problem and --device")
    return select_study(board, options.problem, options.device, options.db).id
