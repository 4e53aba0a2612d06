"""``evoengine.search``: one search from Python, as the command ``search`` runs it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from evoengine.engine.options.problem import ProblemOptions
from evoengine.engine.options.search import SearchOptions, db_option
from evoengine.engine.prefetch import early_imports
from evoengine.errors import NothingFoundError, ProblemError, UsageError
from evoengine.model import Problem, Workload

if TYPE_CHECKING:
    from evoengine.engine.session import Session
    from evoengine.search.events import Observer
    from evoengine.search.settings import SearchResult


def search(
    problem: Problem | Workload | str, options: SearchOptions | None = None, *, observer: Observer | None = None
) -> SearchResult:
    """Searches for the fastest correct kernel; a call with the same arguments resumes the search.

    Workers are forked, so call ``evoengine.tune`` instead in a process that already uses CUDA. Ctrl-C stops the search
    and returns what it has found.

    Args:
        problem: Problem to optimise for, a workload of weighted problems, or a text: ``"4x16x2048x64"`` or the name of
            a problem.
        options: Options of the search, except for the problem; None for the defaults. Candidates are stored in the
            leaderboard ``options.db``.
        observer: Receives the events of the search (:mod:`evoengine.search.events`), for example
            :class:`~evoengine.engine.progress_lines.ProgressLines`; None for no observer.

    Returns:
        The champion, the elites and the statistics of the search.

    Raises:
        UsageError: An option is invalid.
        MissingDependencyError: The device cannot be used here.
        NothingFoundError: The search ended without a correct kernel.
        EvoEngineError: The search cannot go on.
    """
    if options is not None and not isinstance(options, SearchOptions):
        raise UsageError(f"options must be SearchOptions or None, not a {type(options).__name__}")
    if observer is not None and not callable(getattr(observer, "notify", None)):
        raise UsageError(f"observer must have a method 'notify', which a {type(observer).__name__} has not")
    options = for_problem(options or SearchOptions(), problem)
    with early_imports(options) as imports:
        from evoengine.engine.search_plan import make_plan
        from evoengine.engine.session import Session
        from evoengine.search.events import SilentObserver

        with Session(make_plan(options, imports.cluster), imports) as session:
            session.begin()
            result = session.run(observer or SilentObserver())
            require_kernel(session, result)
            return result


def for_problem(options: SearchOptions, problem: Problem | Workload | str) -> SearchOptions:
    """Returns options of a search for another problem or workload.

    Raises:
        ProblemError: The text is not a problem.
    """
    if not isinstance(problem, Problem | Workload | str):
        raise ProblemError(f"a problem is a Problem, a Workload or a text, not a {type(problem).__name__}")
    if isinstance(problem, Workload):
        return replace(options, problem=problem.problems[0], workload=problem)
    found = ProblemOptions(problem).build() if isinstance(problem, str) else problem
    return replace(options, problem=found, workload=None)


def require_kernel(session: Session, result: SearchResult) -> None:
    """Checks that a search found a correct kernel, unless it was interrupted.

    Raises:
        NothingFoundError: It found none; the message counts the statuses and names the most frequent reason.
    """
    from evoengine.leaderboard.records import RowFilter
    from evoengine.search.settings import StopReason

    if result.stop is StopReason.INTERRUPTED or result.progress.best_us is not None or result.elites:
        return  # elites may also come from a concurrent search on the study
    counts = ", ".join(f"{count} {status.value}" for status, count in result.progress.counts.items())
    reasons = Counter(row.reason for row in session.board.rows(RowFilter(study_id=session.study.id, statuses=())))
    most_frequent = f", most often '{reasons.most_common(1)[0][0]}'" if reasons else ""
    raise NothingFoundError(
        f"no correct kernel among {result.progress.evaluated} candidates ({counts or 'none'}{most_frequent}): "
        f"see 'leaderboard --status all{db_option(session.database)}'"
    )
