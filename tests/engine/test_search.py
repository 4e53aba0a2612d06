"""``evoengine.search``, and a search in a process of its own."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import evoengine
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.progress_lines import ProgressLines
from evoengine.engine.search import for_problem
from evoengine.engine.search_process import SearchJob, search_in_process
from evoengine.errors import ConfigFileError, EvoEngineError, NothingFoundError, UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import NAMED_PROBLEMS, Problem, Workload, WorkloadPart
from tests.cli.calling import environment
from tests.made_once import made_once

TINY = Problem(1, 1, 16, 16)
OPTIONS = SearchOptions(budget=1, device="emulator", family="mma", strategy="random", forecast=False, workers=1)


def in_folder(folder: Path, **changes: object) -> SearchOptions:
    return replace(OPTIONS, **({"db": str(folder / "leaderboard.db")} | changes))  # type: ignore[arg-type]


def _search(folder: Path) -> None:
    lines: list[str] = []
    result = evoengine.search("1x1x16x16", in_folder(folder), observer=ProgressLines(lines.append, predicted=True))
    (folder / "result.pickle").write_bytes(pickle.dumps((result, lines)))


@pytest.fixture
def searched(shared_cache: Path, tmp_path: Path) -> tuple[evoengine.SearchResult, list[str]]:
    """Result of a search and the lines of its observer; its leaderboard is in the test's folder.

    The workers of pytest-xdist share one search.
    """
    folder = made_once(shared_cache.parent / "searched-from-python", _search)
    shutil.copyfile(folder / "leaderboard.db", tmp_path / "leaderboard.db")
    return pickle.loads((folder / "result.pickle").read_bytes())  # type: ignore[no-any-return]


def test_a_search_from_python_reports_to_its_observer_and_resumes(
    searched: tuple[evoengine.SearchResult, list[str]], tmp_path: Path
) -> None:
    result, lines = searched
    assert isinstance(result, evoengine.SearchResult)
    assert result.champion is not None
    assert result.champion.problem == TINY.key
    assert any(line.startswith("new champion: row 1, ") for line in lines)
    again = evoengine.search(TINY, in_folder(tmp_path))
    assert (again.progress.evaluated, again.progress.new, again.champion) == (1, 0, result.champion)
    with pytest.raises(NothingFoundError, match="no correct kernel"):
        evoengine.search(TINY, in_folder(tmp_path, db=str(tmp_path / "other.db"), time_limit_s=0.0))


def test_the_package_is_callable_and_its_modules_are_imported_as_usual() -> None:
    program = (
        "import evoengine.search.settings as settings, evoengine, inspect\n"
        "assert callable(evoengine.search) and inspect.ismodule(evoengine.search)\n"
        "assert evoengine.search.settings is settings and evoengine.SearchResult is settings.SearchResult\n"
        "evoengine.search('nonsense')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("evoengine.errors.ProblemError: ")


def test_options_for_another_problem_or_workload() -> None:
    other = Problem(1, 2, 16, 32)
    workload = Workload("two", (WorkloadPart(other, 1.0), WorkloadPart(TINY, 2.0)))
    whole = for_problem(OPTIONS, workload)
    assert (whole.problem, whole.workload, whole.budget) == (other, workload, 1)
    assert for_problem(whole, "tiny") == replace(OPTIONS, problem=NAMED_PROBLEMS["tiny"])
    assert for_problem(whole, TINY) == replace(OPTIONS, problem=TINY)


def test_a_child_process_returns_the_result(
    searched: tuple[evoengine.SearchResult, list[str]], tmp_path: Path, shared_cache: Path
) -> None:
    """The study is complete. Searches whose child process evaluates candidates are those of ``evoengine.tune``."""
    job = SearchJob(replace(in_folder(tmp_path), problem=TINY), quiet=True)
    result = search_in_process(job, environment(shared_cache))
    assert (result.progress.evaluated, result.progress.new) == (1, 0)
    assert result.champion == searched[0].champion
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}", create=False) as board:
        (study,) = board.studies()
        assert study.key.problem == TINY
        assert result.champion == board.get(1).row


@pytest.mark.parametrize(
    ("changes", "kind", "names"),
    [
        ({"device": "abacus"}, UsageError, "unknown device 'abacus'"),
        pytest.param({"time_limit_s": 0.0}, NothingFoundError, "no correct kernel", marks=pytest.mark.thorough),
        pytest.param({"db": "/nowhere/at/all.db"}, UsageError, "/nowhere/at", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.thorough
def test_a_child_process_returns_its_error(
    tmp_path: Path, changes: dict[str, object], kind: type[EvoEngineError], names: str
) -> None:
    job = SearchJob(replace(in_folder(tmp_path), problem=TINY, **changes), quiet=True)  # type: ignore[arg-type]
    with pytest.raises(kind, match=names):
        search_in_process(job, environment(tmp_path / "cache"))


def test_a_child_process_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "evoengine").mkdir()
    (tmp_path / "evoengine" / "__init__.py").write_text("raise SystemExit('no such package')")
    with pytest.raises(EvoEngineError, match=r"exit code 1\b.*no such package"):
        search_in_process(SearchJob(OPTIONS, quiet=True), settings)


def test_jobs_and_errors_survive_the_pipe() -> None:
    job = SearchJob(replace(OPTIONS, space_file=Path("own.toml")))
    assert pickle.loads(pickle.dumps(job)) == job
    error = pickle.loads(pickle.dumps(ConfigFileError("a.toml", "key", "reason")))
    assert (type(error), error.key, str(error)) == (ConfigFileError, "key", "a.toml: key: reason")
