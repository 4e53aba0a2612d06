"""Searches on a real Ray cluster of three nodes on this machine: actor, node, head and coordinator are killed.

No result is lost and none is counted twice. Before that, two coordinators take problems from a queue on the same
cluster. ``tests/ray_cluster.py`` starts Ray.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from evoengine.cli.exit_codes import WORKERS_LOST
from tests.cli.calling import environment
from tests.ray_cluster import local_cluster

BUDGET = 8
COMMON = ("search", "--device", "emulator", "--family", "scalar", "--strategy", "random",
          "--no-starts", "--no-forecast", "--no-transfer")  # fmt: skip
SEARCH = (*COMMON, "--problem", "tiny", "--budget", str(BUDGET))
QUEUE = (*COMMON, "--problems", "set.toml", "--budget", "1")
PROBLEMS = {"first": "1x1x16x32", "second": "1x2x16x32", "third": "1x1x32x32"}


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

    def rows(self, db: str) -> list[tuple[str, int]]:
        """Config and trial number of each stored row, read by SQLite itself."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self._folder / db}?mode=ro", uri=True)) as file:
            return sorted(file.execute("SELECT config_key, trial_number FROM evo_evaluations"))
        return []

    def after(self, search: subprocess.Popen[str], db: str, count: int, action: Callable[[], object]) -> None:
        """Does something as soon as a search has stored some rows, while it goes on."""
        while len(self.rows(db)) < count:
            assert search.poll() is None, search.communicate()[0]
            time.sleep(0.05)
        assert search.poll() is None, "the search has not ended yet"
        action()

    def end(self, search: subprocess.Popen[str], code: int) -> str:
        output = search.communicate(timeout=300)[0]
        assert search.returncode == code, output
        return output


def check_queue(calls: Calls, folder: Path, address: Sequence[str]) -> None:
    """Two coordinators, each on a part of the cluster, search three problems; their results do not mix."""
    tables = [f'[[problems]]\nname = "{name}"\nproblem = "{shape}"\n' for name, shape in PROBLEMS.items()]
    (folder / "set.toml").write_text("\n".join(tables))
    output = calls.end(calls.start("queue.db", *address, "--cluster-parts", "2", words=QUEUE), 0)
    titles = [f"{number} of 3: {name}" for number, name in enumerate(PROBLEMS, start=1)]
    results = [block for block in output.split("\n\n") if "budget reached" in block]
    assert sorted(block.strip().splitlines()[0] for block in results) == titles
    assert all(block.count("budget reached") == 1 for block in results)
    with closing(sqlite3.connect(folder / "queue.db")) as file:
        rows = file.execute(
            "SELECT s.problem, count(*) FROM evo_evaluations JOIN evo_studies s ON s.id = study_id GROUP BY 1"
        )
        assert dict(rows) == {f"{shape}-fp16": 1 for shape in PROBLEMS.values()}


@pytest.mark.slow
def test_nothing_is_lost_or_counted_twice_whatever_is_killed(tmp_path: Path, shared_cache: Path) -> None:
    calls = Calls(tmp_path, shared_cache)
    with local_cluster(3) as cluster:
        address = ("--cluster", cluster.address)
        check_queue(calls, tmp_path, address)
        search = calls.start("hosts.db", *address)
        calls.after(search, "hosts.db", 2, cluster.kill_actor)
        calls.after(search, "hosts.db", 4, cluster.kill_node)
        calls.end(search, 0)
        search = calls.start("resumed.db", *address)
        calls.after(search, "resumed.db", 2, lambda: search.send_signal(signal.SIGKILL))
        calls.end(search, -signal.SIGKILL)
        kept = calls.rows("resumed.db")
        search = calls.start("resumed.db", *address)
        calls.after(search, "resumed.db", len(kept) + 2, cluster.kill_head)
        output = search.communicate(timeout=300)[0]
        # It may have all results before it notices; else it notices a silent head, lost workers, or that Ray ended it.
        assert search.returncode in (0, WORKERS_LOST), output
    calls.end(calls.start("resumed.db"), 0)  # without a cluster: it is the same study
    assert set(kept) <= set(calls.rows("resumed.db"))
    calls.end(calls.start("alone.db"), 0)
    whole = [config for config, _ in calls.rows("alone.db")]
    for db in ("hosts.db", "resumed.db"):
        rows = calls.rows(db)
        assert sorted(config for config, _ in rows) == whole, db
        assert sorted(number for _, number in rows) == list(range(len(rows))), db
