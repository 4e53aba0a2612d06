"""A search in a process of its own, for callers that must not fork because they use CUDA.

The parent sends a pickled :class:`SearchJob` to the child's stdin. The child answers on its stdout with a pickled
:class:`~evoengine.search.settings.SearchResult` or :class:`~evoengine.errors.EvoEngineError`; everything that it prints
goes to stderr. Both processes run this package and candidates run in worker processes, so pickles are safe here.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evoengine.device.workers.worker_main import die_with_parent
from evoengine.engine.options.search import SearchOptions
from evoengine.errors import DefectError, EvoEngineError, MachineError
from evoengine.system.garbage_collection import collect_rarely
from evoengine.system.machine_faults import machine_fault
from evoengine.system.streams import open_missing_streams

if TYPE_CHECKING:
    from evoengine.search.settings import SearchResult


@dataclass(frozen=True)
class SearchJob:
    """The search of a child process."""

    options: SearchOptions
    quiet: bool = False
    """Whether to print no progress on stderr."""
    parent_pid: int = field(default_factory=os.getpid)
    """Process that waits for the result; the search ends with it."""


def search_in_process(job: SearchJob, environment: Mapping[str, str]) -> SearchResult:
    """Runs a search in a child process.

    Args:
        job: Job of the child.
        environment: Environment variables of the child.

    Raises:
        EvoEngineError: The error that ended the search, with its own type, or the child gave no answer.
    """
    from evoengine.search.settings import SearchResult

    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=pickle.dumps(job),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if job.quiet else None,
        check=False,
    )
    try:
        answer = pickle.loads(done.stdout)  # noqa: S301 - the child runs this module
    except (EOFError, pickle.UnpicklingError) as error:
        lines = (done.stderr or b"").decode(errors="replace").strip().splitlines()
        reason = f": {lines[-1]}" if lines else ""
        raise EvoEngineError(
            f"the search process ended without a result (exit code {done.returncode}){reason}"
        ) from error
    if isinstance(answer, EvoEngineError):
        raise answer
    assert isinstance(answer, SearchResult)
    return answer


def main() -> None:
    """Reads a job from stdin, runs it and writes the answer to what was stdout."""
    for library in ("OPENBLAS", "OMP", "MKL"):  # workers use all cores; idle threads of a library would spin
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    collect_rarely()
    open_missing_streams()
    job = pickle.load(sys.stdin.buffer)  # noqa: S301 - the parent runs this module
    assert isinstance(job, SearchJob)
    die_with_parent(job.parent_pid)
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answer = _answer(job)
    with open(answers, "wb") as stream:  # noqa: PTH123 - a file descriptor
        pickle.dump(answer, stream)


def _answer(job: SearchJob) -> SearchResult | EvoEngineError:
    try:
        return _run(job)
    except EvoEngineError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the caller gets every error as a record
        fault = machine_fault(error)
        if fault is not None:
            return fault
        if isinstance(error, OSError):
            return MachineError(f"{error.filename or 'this machine'}: {error.strerror or error}")
        traceback.print_exc()
        return DefectError(f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _run(job: SearchJob) -> SearchResult:
    from evoengine.engine.prefetch import early_imports

    with early_imports(job.options) as imports, ExitStack() as stack:
        from evoengine.engine.event_file import open_event_log
        from evoengine.engine.progress_lines import ProgressLines
        from evoengine.engine.search import require_kernel
        from evoengine.engine.search_plan import make_plan
        from evoengine.engine.session import Session
        from evoengine.search.events import Observer, Observers

        plan = make_plan(job.options, imports.cluster)
        session = stack.enter_context(Session(plan, imports))
        session.begin()
        observers: list[Observer] = []
        if not job.quiet:
            observers.append(ProgressLines(_print_line, predicted=plan.device.predicted))
        log = open_event_log(session.board, session.study, None)
        if log is not None:
            stack.callback(log.close)
            observers.append(log)
        result = session.run(Observers(*observers))
        require_kernel(session, result)
        return result


def _print_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    from evoengine.engine.search_process import main as imported_main  # pickles name classes by their module

    imported_main()
