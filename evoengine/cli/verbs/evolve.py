"""``evolve``: evolves the source of a family, prints each attempt and the result by operator."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from evoengine.cli.exit_codes import INTERRUPTED, OK
from evoengine.cli.output.console import command_name, make_console, print_json, print_table
from evoengine.cli.output.progress import ProgressDisplay
from evoengine.cli.output.verbosity import is_quiet, is_verbose
from evoengine.cli.verbs.leaderboard import row_document
from evoengine.engine.options.evolution import EvolveOptions
from evoengine.engine.options.model import ModelOptions
from evoengine.engine.options.search import db_option
from evoengine.errors import NothingFoundError
from evoengine.evolution.credit import CONTROLS
from evoengine.evolution.llm.opening import OpenedModel, open_model
from evoengine.evolution.loop import EvolutionResult, EvolutionStop
from evoengine.evolution.run import evolve
from evoengine.leaderboard.variants import Attempt
from evoengine.search.events import Observer


def run_evolve(options: EvolveOptions, model: ModelOptions, *, json_output: bool) -> int:
    """Runs or resumes an evolution.

    Args:
        options: Options of the evolution.
        model: Options of the language model.
        json_output: Whether to print a JSON document.

    Returns:
        The exit code.

    Raises:
        NothingFoundError: The evolution ended without a correct kernel.
        EvoEngineError: The evolution could not run.
    """
    notes = make_console(stderr=True)
    out = notes if json_output else make_console()
    with ExitStack() as stack:
        observer: Observer | None = None
        if is_verbose():
            observer = stack.enter_context(ProgressDisplay(notes, predicted=False, verbose=True))
        opened = stack.enter_context(open_model(model, options.db))
        proposers = () if opened is None else opened.operators
        done = evolve(options, lambda one: None if is_quiet() else _report(out, one), observer, proposers)
    if json_output:
        print_json(_document(options, done) | {"model": None if opened is None else _model_document(opened)})
    else:
        _summarise(out, options, done)
        if opened is not None:
            _print_model(out, opened)
        _print_next(out, options)
    if done.stop is EvolutionStop.INTERRUPTED:
        return INTERRUPTED
    if done.best is None:
        raise NothingFoundError(
            f"no correct kernel of {options.family} for {options.problem.key} ({done.stop.value}): see 'leaderboard "
            f"--status all{db_option(options.db)}', or give more time"
        )
    return OK


def _report(out: Console, attempt: Attempt) -> None:
    """Prints one line for a finished attempt."""
    time_us = "" if attempt.best_us is None else f" {attempt.best_us:.3f} us"
    change = ""
    if attempt.best_us is not None and attempt.parent_us is not None:
        change = f" ({attempt.parent_us / attempt.best_us - 1:+.1%} on its parent)"
    reason = "" if not attempt.reason else f": {attempt.reason}"
    name = attempt.variant or attempt.parent
    what = f" ({attempt.summary})" if attempt.summary else ""
    line = f"{attempt.operator:9} {name} from {attempt.parent}: {attempt.stage}{time_us}{change}{reason}{what}"
    out.print(line, markup=False, soft_wrap=True)


def _summarise(out: Console, options: EvolveOptions, done: EvolutionResult) -> None:
    count = sum(stats.proposals for stats in done.operators)
    out.print(
        f"{done.stop.value}: {count} of {options.budget} proposals, {done.new} attempts in {done.elapsed_s:.1f} s, "
        f"{done.cells} archive cells",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    for name in ("operator", "proposals", "correct", "faster than parent", "best gain", "candidates", "seconds"):
        table.add_column(name, justify="left" if name == "operator" else "right", no_wrap=True)
    for stats in done.operators:
        name = f"{stats.operator} (control)" if stats.operator in CONTROLS else stats.operator
        gain = f"{stats.best_gain:+.1%}" if stats.correct else ""
        numbers = (stats.proposals, stats.correct, stats.faster, gain, stats.candidates, f"{stats.seconds:.1f}")
        table.add_row(name, *map(str, numbers))
    print_table(out, table)
    if done.base_us is not None:
        out.print(f"unchanged {options.family}: {done.base_us:.3f} us", markup=False)
    if done.best is not None and done.best.best_us is not None:
        out.print(f"best      {done.best.variant}: {done.best.best_us:.3f} us, row {done.best.row_id}", markup=False)
    if done.champion is not None:
        out.print(f"champion  row {done.champion.id} of {done.champion.family}", markup=False)


def _print_model(out: Console, opened: OpenedModel) -> None:
    """Prints what the requests to the model took."""
    spent = opened.spent
    money = f", {spent.money:.4f} at --llm-price" if opened.is_priced else ""
    out.print(f"model     {spent.calls} requests, {spent.tokens} tokens{money}, {spent.seconds:.1f} s", markup=False)


def _model_document(opened: OpenedModel) -> dict[str, Any]:
    spent = opened.spent
    return {**dataclasses.asdict(spent), "money": spent.money if opened.is_priced else None}


def _print_next(out: Console, options: EvolveOptions) -> None:
    out.print(f"next      {command_name()} lineage{db_option(options.db)}", markup=False, soft_wrap=True)


def _document(options: EvolveOptions, done: EvolutionResult) -> dict[str, Any]:
    return {
        "problem": options.problem.key,
        "family": options.family,
        "stop": done.stop.value,
        "budget": options.budget,
        "new": done.new,
        "cells": done.cells,
        "elapsed_s": done.elapsed_s,
        "base_us": done.base_us,
        "best": None if done.best is None else dataclasses.asdict(done.best),
        "champion": None if done.champion is None else row_document(done.champion),
        "operators": [{**dataclasses.asdict(stats), "control": stats.operator in CONTROLS} for stats in done.operators],
        "attempts": [dataclasses.asdict(one) for one in done.attempts],
    }
