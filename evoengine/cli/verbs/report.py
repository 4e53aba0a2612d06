"""``report``: studies as an HTML page."""

from __future__ import annotations

from datetime import UTC, datetime

from evoengine.cli.output.console import command_name, print_json
from evoengine.cli.output.verbosity import say_wrote
from evoengine.engine.options.verbs import ReportOptions
from evoengine.engine.rows.queries import matches, problem_key, stored_problems
from evoengine.errors import NothingFoundError, UsageError
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.report.facts import StudyFacts, find_study, gather_all, newest_first
from evoengine.report.page import render_page
from evoengine.system.files import names_stdout, refuse_existing, write_file


def run_report(options: ReportOptions, *, json_output: bool) -> None:
    """Writes the page of one study or of several.

    Raises:
        UsageError: The file exists or cannot be written, or stdout is to hold both the page and JSON.
        StoreError: There is no study, or no such study.
        NothingFoundError: No study is of this problem and device.
        MissingDependencyError: Plotly is not installed.
    """
    if json_output and names_stdout(options.output):
        raise UsageError("--json and the page are both for stdout: give -o a file, or leave --json out")
    refuse_existing([options.output], force=options.force)
    with Leaderboard(database_url(options.db), create=False) as board:
        studies = _gather(board, options)
    text = render_page(*studies, program=command_name(), written_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    write_file(options.output, text)
    facts = studies[0]
    if json_output:
        rows, predicted = len(facts.rows), facts.predicted
        first = {"file": str(options.output), "study_id": facts.study.id, "rows": rows, "predicted": predicted}
        print_json({**first, "studies": [one.study.id for one in studies]})
        return
    kind = "PREDICTED" if facts.predicted else "measured"
    more = "" if len(studies) == 1 else f"; {len(studies)} studies, this one is shown first"
    what = f"study {facts.study.id}, {len(facts.rows)} candidates, {facts.title}, times {kind}"
    say_wrote(options.output, f"wrote {options.output}: {what}{more}")


def _gather(board: Leaderboard, options: ReportOptions) -> list[StudyFacts]:
    studies = newest_first(board) if options.study is None else [find_study(board, options.study)]
    wanted = [study for study in studies if matches(study.scope, options.problem, options.device)]
    if not wanted:
        held = ", ".join(dict.fromkeys(f"{study.scope.problem} on {study.scope.device}" for study in studies))
        what = "this device" if options.problem is None else f"{problem_key(options.problem)} and this device"
        which = f"{held}; select one with {stored_problems(board)}"
        raise NothingFoundError(f"{database_name(options.db)}: no study of {what}; studied: {which}")
    return gather_all(board, wanted)
