"""``report``: one study as an HTML page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from evoengine.cli.options.verbosity import say
from evoengine.cli.output.console import command_name, print_json
from evoengine.cli.output.files import write_whole
from evoengine.errors import UsageError
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.report.facts import gather
from evoengine.report.page import render_page


def run_report(study_id: int | None, *, output: Path, db: str, force: bool, json_output: bool) -> None:
    """Writes the page of one study.

    Raises:
        UsageError: the file exists, or cannot be written.
        StoreError: there is no such study.
        MissingDependencyError: Plotly is not installed.
    """
    if output.exists() and not force:
        raise UsageError(f"{output} exists: give --force to overwrite it, or another -o")
    with Leaderboard(database_url(db), create=False) as board:
        facts = gather(board, study_id)
    text = render_page(facts, program=command_name(), written_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    write_whole(output, text)
    if json_output:
        rows, predicted = len(facts.rows), facts.predicted
        print_json({"file": str(output), "study_id": facts.study.id, "rows": rows, "predicted": predicted})
        return
    kind = "PREDICTED" if facts.predicted else "measured"
    where = f"{facts.subject} on {facts.study.scope.device}, times {kind}"
    say(f"wrote {output}: study {facts.study.id}, {len(facts.rows)} candidates, {where}")
