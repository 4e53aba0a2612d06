"""Searches on a real Ray cluster of three nodes on this machine: an actor and a node are killed.

No result is lost and none is counted twice, while two coordinators, each on a part of the cluster, take problems from a
queue. ``tests/ray_cluster.py`` starts Ray; ``scripts/measure/cluster_faults.py`` kills the coordinator and the head as
well.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from evoengine.model import NAMED_PROBLEMS
from tests.cli.calling import environment
from tests.ray_cluster import local_cluster

BUDGET = 5
COMMON = ("search", "--device", "emulator", "--family", "scalar", "--strategy", "random", "--budget", str(BUDGET),
          "--no-starts", "--no-forecast", "--no-transfer")  # fmt: skip
SEARCH = (*COMMON, "--problem", "tiny")
QUEUE = (*COMMON, "--problems", "set.toml", "--cluster-parts", "2")
PROBLEMS = {"first": "1x1x16x32", "second": "tiny"}


class Calls:
    """Calls of ``search`` in a folder."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder, self._environment = folder, environment(cache)

    def start(self, db: str, *options: str, words: Sequence[str] = SEARCH) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "evoengine", *words, "--db", db, *options]
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def rows(self, db: str) -> list[tuple[str, str, int]]:
        """Config, status and trial number of each stored row of the problem, read by SQLite itself."""
        query = "SELECT config_key, status, trial_number FROM evo_evaluations WHERE study_id = "
        query += f"(SELECT id FROM evo_studies WHERE problem = '{NAMED_PROBLEMS['tiny'].key}')"
        return sorted(self._query(db, query))

    def count(self, db: str) -> int:
        """Number of stored rows of all problems."""
        return sum(count for (count,) in self._query(db, "SELECT count(*) FROM evo_evaluations"))

    def _query(self, db: str, query: str) -> list[Any]:
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self._folder / db}?mode=ro", uri=True)) as file:
            return list(file.execute(query))
        return []

    def after(self, search: subprocess.Popen[str], db: str, count: int, action: Callable[[], object]) -> None:
        """Does something as soon as a search has stored some rows, while it goes on."""
        while self.count(db) < count:
            assert search.poll() is None, search.communicate()[0]
            time.sleep(0.05)
        assert search.poll() is None, "the search has not ended yet"
        action()

    def end(self, search: subprocess.Popen[str], code: int) -> str:
        output = search.communicate(timeout=300)[0]
        assert search.returncode == code, output
        return output


def check_output(output: str) -> None:
    """Each result follows its title: those of searches at the same time do not mix. Ray prints lines between them."""
    reached = f"budget reached: {BUDGET} of {BUDGET}"
    lines = re.findall(rf"^\d of 2: \w+|^{reached}", output, re.MULTILINE)
    titles, results = lines[::2], lines[1::2]
    assert sorted(titles) == [f"{number} of 2: {name}" for number, name in enumerate(PROBLEMS, start=1)], output
    assert results == [reached] * len(PROBLEMS), output


@pytest.mark.thorough
def test_nothing_is_lost_or_counted_twice_whatever_is_killed(tmp_path: Path, shared_cache: Path) -> None:
    calls = Calls(tmp_path, shared_cache)
    tables = [f'[[problems]]\nname = "{name}"\nproblem = "{shape}"\n' for name, shape in PROBLEMS.items()]
    (tmp_path / "set.toml").write_text("\n".join(tables))
    with local_cluster(3) as cluster:
        search = calls.start("hosts.db", "--cluster", cluster.address, words=QUEUE)
        calls.after(search, "hosts.db", 2, cluster.kill_actor)
        calls.after(search, "hosts.db", 4, cluster.kill_node)
        check_output(calls.end(search, 0))
        assert calls.count("hosts.db") == BUDGET * len(PROBLEMS)
    calls.end(calls.start("alone.db"), 0)
    rows, undisturbed = calls.rows("hosts.db"), calls.rows("alone.db")
    assert [row[:2] for row in rows] == [row[:2] for row in undisturbed]
    assert sorted(number for _, _, number in rows) == list(range(BUDGET))
