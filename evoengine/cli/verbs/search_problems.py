"""``search --problems FILE``: one search after the other, for every problem of an ``rbk_config.yaml``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from evoengine.cli.exit_codes import INTERRUPTED, NOTHING_FOUND, OK
from evoengine.cli.options.output_options import OutputOptions
from evoengine.cli.output.console import command_name
from evoengine.cli.verbs.search import run_search
from evoengine.engine.options import SearchOptions
from evoengine.errors import NothingFoundError, ProblemError, UsageError
from evoengine.interop.rbk import read_rbk_config
from evoengine.model import Problem


def run_problem_set(request: SearchOptions, voice: OutputOptions, file: Path, default: Problem) -> int:
    """Searches for every problem of a set; one without a correct kernel does not keep the others from being searched.

    Args:
        request: all but the problem.
        voice: how it speaks.
        file: the set.
        default: the problem that stands in a request which names none.

    Returns:
        The exit code: the worst of all.

    Raises:
        UsageError: a problem is named as well, or JSON is asked for, which tells of one search.
        LandscapeError: the file is malformed.
    """
    if request.problem != default or request.workload is not None:
        raise UsageError("--problems names the problems: leave --workload and the options of a single one out")
    if voice.json_output:
        raise UsageError("--json tells of one search: leave it out, and ask 'leaderboard --json' at the end")
    config = read_rbk_config(file)
    worst = OK
    for number, shape in enumerate(config.shapes, start=1):
        typer.echo(f"\n{number} of {len(config.shapes)}: {shape.name}")
        try:
            code = run_search(replace(request, problem=shape.problem), voice)
        except (NothingFoundError, ProblemError) as error:
            typer.echo(f"{shape.name}: {error}", err=True)
            code = NOTHING_FOUND
        if code == INTERRUPTED:
            return code
        worst = max(worst, code)
    typer.echo(f"\nnext      {command_name()} leaderboard export --format rbk --problems {file} -o {config.output_dir}")
    return worst
