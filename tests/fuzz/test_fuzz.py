"""Bad inputs of every kind: each is refused in one line or harmless, and nothing is lost or left behind."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.cli.searched import small_search
from tests.fuzz.campaign import KINDS, cases, prepare, run_cases
from tests.fuzz.cases import Case
from tests.fuzz.command_line import places
from tests.fuzz.python_api import ApiCase, objection
from tests.fuzz.runner import Runner
from tests.made_once import made_once
from tests.warm import WarmPython

SEED = 20261123
COUNTS = {
    "options": 1,
    "calls": 1,
    "combinations": 60,
    "files": 100,
    "data": 36,
    "databases": 60,
    "environment": 52,
    "Python": 250,
}
"""Number of cases of each kind; of ``options``, of values for each option."""
SHARES = {kind: 1 if kind == "combinations" else 4 for kind in KINDS}
"""CI runs all cases of ``combinations``, which are cheap, and every fourth of the others."""
LEAST = 800
"""Least number of distinct bad inputs of all kinds."""


@pytest.fixture(scope="session")
def samples(shared_cache: Path, warm: WarmPython) -> Path:
    """Sample files, which the workers of pytest-xdist share."""
    board = small_search(warm, shared_cache) / "leaderboard.db"
    return made_once(shared_cache.parent / "fuzz-samples", lambda folder: prepare(folder, shared_cache, board))


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        *(pytest.param(kind, SHARES[kind], id=kind) for kind in KINDS),
        *(pytest.param(kind, 1, id=f"all {kind}", marks=pytest.mark.thorough) for kind in KINDS if SHARES[kind] > 1),
    ],
)
def test_bad_inputs_are_refused_or_harmless(kind: str, every: int, samples: Path, shared_cache: Path) -> None:
    total, findings = run_cases(kind, SEED, COUNTS[kind], samples, shared_cache, every)
    assert [str(finding) for finding in findings] == []
    assert total >= min(COUNTS[kind], 60) // every


def test_the_share_that_ci_runs_has_every_verb(samples: Path) -> None:
    all_cases = cases("options", SEED, COUNTS["options"], samples)
    ran = [case.words for case in islice(all_cases, 0, None, SHARES["options"])]
    verbs = {place.verb for place in places()}
    assert [verb for verb in verbs if not any(words[: len(verb)] == verb for words in ran)] == []


def test_there_are_enough_distinct_bad_inputs(samples: Path) -> None:
    known = {
        (case.words, tuple(case.files.items()), tuple(case.environment.items()))
        for kind in KINDS[:-1]
        for case in cases(kind, SEED, COUNTS[kind], samples)
    }
    assert len(known) >= LEAST
    assert {place.verb for place in places()} >= {("search",), ("leaderboard", "import"), ("landscape", "merge")}


@pytest.mark.thorough
def test_a_process_of_its_own_answers_alike(samples: Path, shared_cache: Path) -> None:
    """A sample of the cases, as the shell runs them: with bytes for arguments, and streams of the system."""
    chosen = [
        Case("invalid UTF-8", ("leaderboard", "--db", "\udcff\udcfe.db")),
        Case("very long", ("space", "--family", "x" * 100_000)),
        Case("control characters", ("search", "--dtype", "\x1b[31m\n")),
        Case("damaged leaderboard", ("leaderboard", "--db", "bad.db"), {"bad.db": b"SQLite format 3\0" + bytes(600)}),
        Case("settings", ("space",), {"evoengine.toml": b"force = true\n"}),
    ]
    with Runner(samples, shared_cache) as runner:
        assert [str(found) for case in chosen if (found := runner.check(case, alone=True))] == []


def test_the_runner_sees_what_is_wrong(samples: Path, shared_cache: Path) -> None:
    """The checks are not blind: calls that break each rule are reported."""
    with Runner(samples, shared_cache) as runner:
        wrote = runner.check(Case("writes", ("export", "1", "-o", "notes.txt", "--db", "board.db", "-f")))
        assert wrote is not None
        assert wrote.problems == ("notes.txt was changed",)
    assert "KeyError" in objection(ApiCase("key", lambda: dict[str, int]()["x"]))
    assert "ValueError of" in objection(ApiCase("two lines", lambda: _fail("two\nlines")))


def _fail(message: str) -> None:
    raise ValueError(message)
