"""``verify``: prints measured times beside the predicted ones."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from evoengine.cli.exit_codes import INTERRUPTED, OK
from evoengine.cli.output.config_text import SharedTunables
from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.progress import observe_on
from evoengine.cli.output.verbosity import note
from evoengine.documents.escaping import printable
from evoengine.engine.options.search import db_option
from evoengine.engine.options.verbs import VerifyOptions
from evoengine.engine.rows.queries import newest_problem_note
from evoengine.engine.search_plan import SearchPlan
from evoengine.engine.verify import verify
from evoengine.search.prediction_check import PredictionAccuracy, VerifiedElite, prediction_accuracy


def run_verify(options: VerifyOptions, *, json_output: bool) -> int:
    """Measures, and prints the comparison.

    Returns:
        The exit code.

    Raises:
        MissingDependencyError: There is no GPU.
        NothingFoundError: There are no predictions, or none is valid on this device.
        EvoEngineError: The device cannot be used.
    """
    done = verify(options, observe_on(make_console(stderr=True)))
    held = prediction_accuracy(done.entries)
    if options.problem is None and done.plan.replay is None:
        note(newest_problem_note(options.db, done.plan.problem.key, "emulator"))
    if json_output:
        print_json(_document(done.plan, done.entries, held))
    else:
        _print(make_console(), done.plan, done.entries, held)
    return INTERRUPTED if done.interrupted else OK


def _print(out: Console, plan: SearchPlan, entries: list[VerifiedElite], held: PredictionAccuracy) -> None:
    predicted = entries[0].row
    out.print(f"predicted on {predicted.device} by {predicted.method}, measured on {plan.device.name}", markup=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("rank", "row", "predicted us", "measured us", "ratio", "status"):
        table.add_column(heading, justify="right" if heading != "status" else "left")
    shared = SharedTunables([entry.row for entry in entries])
    table.add_column("tunables that differ", overflow="ellipsis", no_wrap=True)
    for entry in entries:
        table.add_row(
            str(entry.rank),
            str(entry.row.id),
            _number(entry.row.median_us, 2),
            _number(entry.measured_us, 2),
            _number(entry.ratio, 3),
            "not valid here" if entry.evaluation is None else entry.evaluation.status.value,
            printable(shared.differing(entry.row)),
        )
    print_table(out, table)
    for line in (*shared.lines(), *_lines(plan, held)):
        out.print(line, markup=False)


def _lines(plan: SearchPlan, held: PredictionAccuracy) -> list[str]:
    if held.best is None or held.first is None:
        return [f"no elite has a measured time: see 'leaderboard --status all{db_option(plan.request.db)}'"]
    first = f"{held.first.measured_us:.2f} us"
    rho = "" if held.spearman is None else f", rank correlation {held.spearman:.2f} (Spearman)"
    kind = "predicted" if plan.device.predicted else "measured"
    return [
        f"compared  {held.compared} elites{rho}",
        f"ratio     median of {kind} / predicted time: {held.median_ratio:.2f}",
        f"best      {held.best.measured_us:.2f} us, predicted as number {held.best.rank}; number 1 took {first}",
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _document(plan: SearchPlan, entries: list[VerifiedElite], held: PredictionAccuracy) -> dict[str, Any]:
    predicted = entries[0].row
    return {
        "problem": plan.problem.key,
        "predicted_for": predicted.device,
        "model": predicted.method,
        "device": plan.device.name,
        "device_kind": plan.device.kind,
        "compared": held.compared,
        "spearman": held.spearman,
        "median_ratio": held.median_ratio,
        "best_rank": None if held.best is None else held.best.rank,
        "best_us": None if held.best is None else held.best.measured_us,
        "elites": [
            {
                "rank": entry.rank,
                "row": entry.row.id,
                "family": entry.row.family,
                "config": dict(entry.row.config),
                "predicted_us": entry.row.median_us,
                "measured_us": entry.measured_us,
                "ratio": entry.ratio,
                "status": None if entry.evaluation is None else entry.evaluation.status.value,
                "reason": "" if entry.evaluation is None else entry.evaluation.reason,
            }
            for entry in entries
        ],
    }
