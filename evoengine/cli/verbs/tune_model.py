"""``tune-model``: prints the attention calls of a model, the kernels found for them, and the model's times."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from evoengine.api.call_recording import RecordedCall
from evoengine.api.model_file import load_model
from evoengine.api.model_timing import ModelTime
from evoengine.api.model_tuning import ModelTuning, TunedProblem, planned, recorded_calls, tune_model
from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.echo import echo
from evoengine.cli.output.verbosity import is_quiet, say
from evoengine.documents.escaping import printable
from evoengine.engine.options.verbs import TuneModelOptions
from evoengine.system.files import refuse_database


def run_tune_model(options: TuneModelOptions, *, json_output: bool) -> None:
    """Executes the user's file, tunes its model and prints the result.

    Raises:
        UsageError: The file cannot be executed, the lockfile would be a database, or an option is invalid.
        NothingFoundError: The model makes no call that kernels can serve, or no kernel was found.
        EvoEngineError: A search could not run.
    """
    if not options.record_only:
        refuse_database(options.output)
    with _only_our_output():
        model, inputs = load_model(options.file)
        if options.record_only:
            calls = recorded_calls(model, inputs)
            done = ModelTuning(
                tuple(planned(calls, 0)), tuple(call for call in calls if call.problem is None), "", "", predicted=False
            )
        else:
            done = tune_model(
                model,
                *inputs,
                budget=options.budget,
                time_limit_s=options.time_limit_s,
                leaderboard=options.db,
                lockfile=str(options.output),
                seed=options.seed,
                most_sharing_cost=options.most_sharing_cost,
                quiet=is_quiet(),
            )
    if json_output:
        print_json(_document(done))
    else:
        _print(make_console(), done, recorded_only=options.record_only)


@contextmanager
def _only_our_output() -> Iterator[None]:
    """Sends what the user's file prints to stderr, and shows warnings as one line each."""

    def show(message: Warning | str, *_place: Any, **_more: Any) -> None:
        echo(f"warning: {message}", err=True)

    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _print(out: Console, done: ModelTuning, *, recorded_only: bool) -> None:
    if done.problems:
        print_table(out, _table(done.problems, predicted=done.predicted, recorded_only=recorded_only))
    for call in done.refused:
        times = "call" if call.count == 1 else "calls"
        out.print(f"torch computes {call.count} {times} of {call.what}: {call.reason}")
    if not done.problems and not done.refused:
        out.print("the model makes no attention call")
    for measured in done.times:
        out.print(_line(measured))
    if done.lockfile:
        say(f"wrote {done.lockfile}")
    elif done.predicted:
        say("wrote no lockfile: times are predictions")


def _table(problems: Sequence[TunedProblem], *, predicted: bool, recorded_only: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    headings = ["problem", "calls", "share", "us a call"]
    if not recorded_only:
        headings += ["candidates", "row", "predicted us" if predicted else "kernel us", "SDPA us", "note"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("problem", "note") else "right")
    for item in problems:
        cells = [item.call.what, str(item.call.count), f"{item.share:.1%}", _number(item.call.median_us)]
        if not recorded_only:
            row = "-" if item.row_id is None else str(item.row_id)
            cells += [str(item.candidates), row, _number(item.median_us), _number(item.sdpa_us), _note(item)]
        table.add_row(*map(printable, cells))
    return table


def _note(item: TunedProblem) -> str:
    if item.shared_with:
        return f"kernel of {item.shared_with}, {item.sharing_cost:.1%} slower than its own"
    if item.median_us is not None and item.sdpa_us is not None and item.sdpa_us < item.median_us:
        return "SDPA is faster and computes it"
    return item.reason


def _line(times: ModelTime) -> str:
    if times.gain is None:
        return f"model, {times.way}: not timed: {times.reason}"
    difference = "" if times.largest_difference is None else f", outputs differ by up to {times.largest_difference:.1e}"
    return (
        f"model, {times.way}: {times.torch_us:.1f} us with torch's attention, {times.evoengine_us:.1f} us with "
        f"EvoEngine's: {times.gain:.2f}x{difference}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _document(done: ModelTuning) -> dict[str, Any]:
    return {
        "problems": [_problem(item) for item in done.problems],
        "refused": [_call(call) for call in done.refused],
        "leaderboard": done.leaderboard,
        "lockfile": done.lockfile,
        "predicted": done.predicted,
        "times": [asdict(times) | {"gain": times.gain} for times in done.times],
    }


def _problem(item: TunedProblem) -> dict[str, Any]:
    fields = {name: getattr(item, name) for name in TunedProblem.__dataclass_fields__ if name != "call"}
    return _call(item.call) | fields


def _call(call: RecordedCall) -> dict[str, Any]:
    return {
        "call": call.what,
        "reason": call.reason,
        "device": call.device,
        "count": call.count,
        "call_us": call.median_us,
    }
