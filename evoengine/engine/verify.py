"""Measures predicted elites on a GPU and compares the times with the predictions."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from evoengine.engine.devices.replay import PREFIX
from evoengine.engine.options.verbs import VerifyOptions
from evoengine.engine.progress_lines import ObserverFactory
from evoengine.engine.rows.queries import one_problem
from evoengine.engine.rows.shortlist import shortlisted
from evoengine.engine.search_plan import SearchPlan, make_plan
from evoengine.engine.search_services import open_services
from evoengine.errors import MissingDependencyError, NothingFoundError
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.records import Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS, Problem
from evoengine.search.events import Observer
from evoengine.search.loop import Search
from evoengine.search.prediction_check import VerifiedElite, match_evaluations, predicted_elites, restrict_to
from evoengine.search.settings import SearchResult, SearchSettings, StopReason
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.target import get_target

_STRATEGY: Final = "verify"
_KEY_DIGITS: Final = 16


@dataclass(frozen=True)
class Verification:
    """Measured elites beside their predictions."""

    plan: SearchPlan
    entries: list[VerifiedElite]
    interrupted: bool


def verify(options: VerifyOptions, observe: ObserverFactory) -> Verification:
    """Measures the predicted elites of a problem. The rows are stored like a search's; the same call resumes.

    Args:
        options: Options of the verification.
        observe: Function that makes the observer of the measurements.

    Raises:
        MissingDependencyError: There is no GPU.
        UsageError: An option is invalid.
        NothingFoundError: There are no predictions, or none is valid on this device.
        EvoEngineError: The device cannot be used.
    """
    plan = make_plan(options.search_options(_problem(options)))
    if plan.choice.spec.kind == "emulator":
        raise MissingDependencyError(
            "verify needs a GPU and none can be used here: run it with this leaderboard where 'doctor' shows one, or "
            "write the kernels with 'export --top 20 --format torch' as a module that times them there"
        )
    with Leaderboard(database_url(options.db)) as board:
        elites = _elites(board, plan, options)
        spaces = restrict_to(plan.valid, [row.full_config for row in elites])
        if spaces is None:
            raise NothingFoundError(f"none of the {len(elites)} predicted elites is valid on {plan.device.name}")
        line = f"verify    {spaces.size} of {len(elites)} predicted elites, on {plan.device.name}"
        with observe(plan, line) as observer:
            result, entries = _measure(plan, board, elites, spaces, observer)
    return Verification(plan, entries, result.stop is StopReason.INTERRUPTED)


def _problem(options: VerifyOptions) -> Problem:
    """The selected problem, else the newest with predictions; a replay has its own."""
    if options.problem is None and options.device.startswith(PREFIX):
        return NAMED_PROBLEMS[DEFAULT_PROBLEM]
    return one_problem(options.problem, "emulator", options.db)


def _elites(board: Leaderboard, plan: SearchPlan, options: VerifyOptions) -> list[Row]:
    target = None if options.target is None else get_target(options.target).marketing_name
    elites = shortlisted(board, predicted_elites(board, plan.problem.key, target), options.top)
    if not elites:
        of = f" for {target}" if target else ""
        raise NothingFoundError(
            f"{database_name(options.db)} has no predictions{of} of {plan.problem.key}: "
            "run 'search --device emulator' first"
        )
    return elites


def _measure(
    plan: SearchPlan, board: Leaderboard, elites: list[Row], spaces: FamilySpaces, observer: Observer
) -> tuple[SearchResult, list[VerifiedElite]]:
    """Searches a space that holds only the elites, in the order of their predictions."""
    configs = [config for row in elites if spaces.contains(config := row.full_config)]
    settings = SearchSettings(
        budget=spaces.size,
        strategy="random",
        seed=plan.request.seed,
        accept_threshold=plan.accept_threshold,
        deadline_s=plan.request.time_limit_s,
    )
    listed = hashlib.sha256(repr((plan.families.key, sorted(c.key for c in configs))).encode()).hexdigest()
    study = board.open_study(replace(plan.study_key, strategy=_STRATEGY, space_key=listed[:_KEY_DIGITS]))
    strategy = start_strategy(settings, spaces, board, study, configs)
    with ExitStack() as stack:
        compiler, examiner = open_services(plan, stack, board.evaluated(study))
        result = Search(settings, board, study, strategy, compiler, examiner, observer).run()
    return result, match_evaluations(elites, [entry.evaluation for entry in board.evaluations(study)])
