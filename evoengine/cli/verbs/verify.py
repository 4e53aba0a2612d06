"""``verify``: measures predicted elites on the device at hand, and says how the predictions held."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from evoengine.cli.exit_codes import INTERRUPTED, OK
from evoengine.cli.output.console import command_name, make_console, print_json, print_table
from evoengine.cli.output.progress import ProgressDisplay
from evoengine.cli.output.ranking_table import config_text
from evoengine.engine.options import SearchOptions
from evoengine.engine.session import SearchPlan, make_plan, open_services
from evoengine.errors import MissingDependencyError, NothingFoundError
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.events import Observer, SilentObserver
from evoengine.search.loop import Search
from evoengine.search.prediction_check import (
    PredictionAccuracy,
    VerifiedElite,
    config_of,
    match_evaluations,
    predicted_elites,
    prediction_accuracy,
    restrict_to,
)
from evoengine.search.settings import SearchResult, SearchSettings, StopReason
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.target import get_target

_STRATEGY: Final = "verify"
_KEY_DIGITS: Final = 16


@dataclass(frozen=True)
class VerifyRequest:
    """The options of ``verify``, parsed."""

    search: SearchOptions
    """Problem, device and leaderboard; its budget and strategy do not matter."""
    top: int = 20
    target: str | None = None
    """Key of the GPU that was predicted for; None for that of the newest prediction."""


def run_verify(request: VerifyRequest, *, json_output: bool, quiet: bool) -> int:
    """Measures and reports. What it measures is stored like a search's rows; the same command resumes.

    Returns:
        The exit code.

    Raises:
        MissingDependencyError: there is no GPU.
        NothingFoundError: there are no predictions, or none is valid on this device.
        EvoEngineError: it could not run.
    """
    plan = make_plan(request.search)
    if plan.choice.spec.kind == "emulator":
        raise MissingDependencyError(
            "verify measures, and no GPU can be used here: run it where 'doctor' shows one, with this leaderboard"
        )
    notes = make_console(stderr=True)
    with Leaderboard(database_url(request.search.db)) as board:
        elites = _elites(board, plan, request)
        spaces = restrict_to(plan.valid, [config_of(row) for row in elites])
        if spaces is None:
            raise NothingFoundError(f"none of the {len(elites)} predicted elites is valid on {plan.device.name}")
        with ExitStack() as stack:
            observer: Observer = SilentObserver()
            if not quiet:
                notes.print(f"verify    {spaces.size} of {len(elites)} predicted elites, on {plan.device.name}")
                observer = stack.enter_context(ProgressDisplay(notes, predicted=plan.device.predicted))
            result, entries = _measured(plan, board, elites, spaces, observer)
    if json_output:
        print_json(_document(plan, entries, prediction_accuracy(entries)))
    else:
        _print(make_console(), plan, entries, prediction_accuracy(entries))
    return INTERRUPTED if result.stop is StopReason.INTERRUPTED else OK


def _elites(board: Leaderboard, plan: SearchPlan, request: VerifyRequest) -> list[Row]:
    target = None if request.target is None else get_target(request.target).marketing_name
    elites = predicted_elites(board, plan.problem.key, request.top, target)
    if not elites:
        of = f" for {target}" if target else ""
        raise NothingFoundError(
            f"{request.search.db} has no predictions{of} of {plan.problem.key}: '{command_name()} search --device "
            "emulator' makes them"
        )
    return elites


def _measured(
    plan: SearchPlan, board: Leaderboard, elites: list[Row], spaces: FamilySpaces, observer: Observer
) -> tuple[SearchResult, list[VerifiedElite]]:
    """A search of nothing but the elites, the fastest predicted first."""
    configs = [config for row in elites if spaces.contains(config := config_of(row))]
    settings = SearchSettings(
        budget=spaces.size,
        strategy="random",
        seed=plan.request.seed,
        accept_threshold=plan.request.accept,
        deadline_s=plan.request.time_limit_s,
    )
    listed = hashlib.sha256(repr((plan.families.key, sorted(c.key for c in configs))).encode()).hexdigest()
    study = board.open_study(replace(plan.study_key, strategy=_STRATEGY, space_key=listed[:_KEY_DIGITS]))
    strategy = start_strategy(settings, spaces, board, study, configs)
    with ExitStack() as stack:
        compiler, examiner = open_services(plan, stack, board.evaluated(study))
        result = Search(settings, board, study, strategy, compiler, examiner, observer).run()
    return result, match_evaluations(elites, [entry.evaluation for entry in board.evaluations(study)])


def _print(out: Console, plan: SearchPlan, entries: list[VerifiedElite], held: PredictionAccuracy) -> None:
    predicted = entries[0].row
    out.print(f"predicted on {predicted.device} by {predicted.method}, measured on {plan.device.name}", markup=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("rank", "row", "predicted us", "measured us", "ratio", "status"):
        table.add_column(heading, justify="right" if heading != "status" else "left")
    table.add_column("config", overflow="ellipsis", no_wrap=True)
    for entry in entries:
        table.add_row(
            str(entry.rank),
            str(entry.row.id),
            _number(entry.row.median_us, 2),
            _number(entry.measured_us, 2),
            _number(entry.ratio, 3),
            "not valid here" if entry.evaluation is None else entry.evaluation.status.value,
            config_text(entry.row.config.items()),
        )
    print_table(out, table)
    for line in _lines(plan, held):
        out.print(line, markup=False)


def _lines(plan: SearchPlan, held: PredictionAccuracy) -> list[str]:
    if held.best is None or held.first is None:
        return ["no elite has a measured time: 'leaderboard --status all' tells why"]
    first = f"{held.first.measured_us:.2f} us"
    rho = "" if held.spearman is None else f", rank correlation {held.spearman:.2f} (Spearman)"
    said = "predicted" if plan.device.predicted else "measured"
    return [
        f"compared  {held.compared} elites{rho}",
        f"ratio     {said} time is {held.median_ratio:.2f} of the predicted one, in the median",
        f"best      {held.best.measured_us:.2f} us, predicted as number {held.best.rank}; number 1 takes {first}",
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
