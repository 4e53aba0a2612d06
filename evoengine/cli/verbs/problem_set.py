"""``search --problems``: a queue of problems, searched in turn, or by several coordinators on parts of a cluster."""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from evoengine.cli.exit_codes import INTERRUPTED, NOTHING_FOUND, OK, run_guarded
from evoengine.cli.options.output_options import OutputOptions
from evoengine.cli.output.console import command_name
from evoengine.cli.output.echo import echo
from evoengine.documents.escaping import shell_word
from evoengine.engine.cluster.layout import Part
from evoengine.engine.cluster.process import run_in_children
from evoengine.engine.options.problem_set import ProblemSet, read_problem_set
from evoengine.engine.options.search import SearchOptions, db_option
from evoengine.engine.prefetch import EarlyImports, cluster_alone
from evoengine.errors import NothingFoundError, ProblemError, UsageError
from evoengine.model import Problem


class _Queue:
    """Problems that no coordinator has taken yet; coordinators are forked after it was made.

    Args:
        problems: The problems.
    """

    def __init__(self, problems: ProblemSet) -> None:
        self._problems = list(problems.problems.items())
        self._next = multiprocessing.Value("q", 0)

    def __iter__(self) -> Iterator[tuple[str, str, Problem]]:
        """Yields place in the queue, name and problem, until all are taken."""
        while True:
            with self._next.get_lock():
                number = self._next.value
                self._next.value += 1
            if number >= len(self._problems):
                return
            name, problem = self._problems[number]
            yield f"{number + 1} of {len(self._problems)}", name, problem


def search_problems(options: SearchOptions, output: OutputOptions, file: Path, parts: int) -> int:
    """Searches every problem of a set; a problem without a correct kernel does not end the series.

    Args:
        options: Options of each search, without a problem.
        output: What is printed and logged.
        file: Set of problems.
        parts: Number of parts of the cluster, each of which searches one problem at a time.

    Returns:
        The highest exit code of all searches.

    Raises:
        UsageError: A problem is named as well, or an option is given that serves one search.
        WorkloadError: The file is malformed.
        LandscapeError: The file is a malformed ``rbk_config.yaml``.
        ClusterLostError: The cluster was lost.
    """
    if options.problem != SearchOptions().problem or options.workload is not None:
        raise UsageError("--problems names the problems: leave --workload and the options of a single problem out")
    if output.json_output:
        raise UsageError("--json prints one search: leave it out, and run 'leaderboard --json' after the searches")
    if parts > 1 and output.log is not None:
        raise UsageError("--log names the log of one search at a time: leave it out with --cluster-parts")
    problems = read_problem_set(file)
    queue = _Queue(problems)
    if options.cluster:
        debug = "--debug" in sys.argv[1:]
        steps = [partial(_coordinate, options, output, queue, Part(number, parts)) for number in range(parts)]
        code = run_in_children([partial(run_guarded, step, debug=debug) for step in steps])
    else:
        code = _search_all(options, output, queue, None)
    if code != INTERRUPTED:
        echo(f"\nnext      {command_name()} {_next(problems, file, options)}")
    return code


def _next(problems: ProblemSet, file: Path, options: SearchOptions) -> str:
    """The command that shows what was found."""
    db = db_option(options.db)
    if problems.rbk_folder is not None:
        words = shell_word(str(file)), shell_word(problems.rbk_folder)
        return f"leaderboard export --format rbk --problems {words[0]} -o {words[1]}{db}"
    return f"leaderboard{db}"


def _coordinate(options: SearchOptions, output: OutputOptions, queue: _Queue, part: Part) -> int:
    """Searches problems of the queue on a part of the cluster, in a process of its own."""
    with cluster_alone(options.cluster, part) as imports:
        if part.count == 1:
            return _search_all(options, output, queue, imports)
        # Several searches print at the same time: each prints its result as a whole, when it has ended.
        quietly = dataclasses.replace(output, quiet=True, verbose=False)
        return _search_all(options, quietly, queue, imports, whole=True)


def _search_all(
    options: SearchOptions, output: OutputOptions, queue: _Queue, imports: EarlyImports | None, *, whole: bool = False
) -> int:
    worst = OK
    for place, name, problem in queue:
        shown = io.StringIO()
        try:
            with redirect_stdout(shown if whole else sys.stdout):
                code = _search_one(options, output, f"{place}: {name}", problem, imports)
        finally:
            sys.stdout.write(shown.getvalue())
            sys.stdout.flush()
        if code == INTERRUPTED:
            return code
        worst = max(worst, code)
    return worst


def _search_one(
    options: SearchOptions, output: OutputOptions, title: str, problem: Problem, imports: EarlyImports | None
) -> int:
    from evoengine.cli.verbs.search import run_search
    from evoengine.engine.search import for_problem

    echo(f"\n{title}")
    try:
        return run_search(for_problem(options, problem), output, imports)
    except (NothingFoundError, ProblemError) as error:
        echo(f"{title}: {error}", err=True)
        return NOTHING_FOUND
