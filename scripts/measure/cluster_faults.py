#!/usr/bin/env python3
"""Kills each part of a Ray cluster during a search and resumes the search; writes docs/results/cluster-faults.

    python scripts/measure/cluster_faults.py --out docs/results/cluster-faults

The cluster has three nodes on this machine, with emulator workers. Each search is compared with one that nothing
disturbs: lost are its outcomes (configs with their statuses) that are missing, twice are configs or trial numbers that
occur more than once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import common

from tests.ray_cluster import LocalCluster, local_cluster

_PARTS: Final = ("actor", "node", "coordinator", "head")
_SEARCH: Final = ("search", "--device", "emulator", "--family", "scalar", "--problem", "tiny", "--strategy", "random",
                  "--no-starts", "--no-forecast", "--no-transfer")  # fmt: skip


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--budget", type=int, default=16, help="Candidates per search.")
    parser.add_argument("--kill-at", type=int, default=5, help="Stored rows at which a part is killed.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    arguments = parser.parse_args()
    report: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), arguments.budget)
        runner.start("alone.db").communicate()
        whole = {(config, status) for config, status, _ in runner.rows("alone.db")}
        for part in _PARTS:
            with local_cluster(3) as cluster:
                report.append(_kill(runner, cluster, part, arguments.kill_at, whole))
            print(report[-1], file=sys.stderr, flush=True)
    common.write_results(arguments.out, report, _page(report, arguments))
    return 0 if all(one["lost"] == one["twice"] == 0 for one in report) else 1


class Runner:
    """Runs searches in a folder."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder, self._budget = folder, budget
        paths = os.pathsep.join([str(common.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._environment = os.environ | {"PYTHONPATH": paths, "EVOENGINE_CACHE": str(folder / "cache")}

    def start(self, db: str, *options: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "evoengine", *_SEARCH, "--budget", str(self._budget), "--db", db, *options]
        silent = subprocess.DEVNULL
        return subprocess.Popen(words, cwd=self._folder, env=self._environment, stdout=silent, stderr=silent)

    def rows(self, db: str) -> list[tuple[str, str, int]]:
        """Config, status and trial number of each row."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self._folder / db}?mode=ro", uri=True)) as file:
            return list(file.execute("SELECT config_key, status, trial_number FROM evo_evaluations"))
        return []


def _kill(runner: Runner, cluster: LocalCluster, part: str, count: int, whole: set[tuple[str, str]]) -> dict[str, Any]:
    db, address = f"{part}.db", ("--cluster", cluster.address)
    search = runner.start(db, *address)
    while len(runner.rows(db)) < count and search.poll() is None:
        time.sleep(0.05)
    before = len(runner.rows(db))
    start_s = time.monotonic()
    if part == "coordinator":
        search.send_signal(signal.SIGKILL)
    else:
        getattr(cluster, f"kill_{part}")()
    code = search.wait(timeout=300)
    ended_s, after, resumed = time.monotonic() - start_s, len(runner.rows(db)), "not needed"
    if code:
        again = runner.start(db, *(address if part == "coordinator" else ()))
        resumed = f"exit code {again.wait(timeout=300)}, {'same cluster' if part == 'coordinator' else 'one machine'}"
    rows = runner.rows(db)
    configs, numbers = {config for config, _, _ in rows}, {number for _, _, number in rows}
    return {
        "part": part, "rows_before": before, "code": code, "ended_s": ended_s, "rows_after": after, "resumed": resumed,
        "rows": len(rows), "lost": len(whole - {(config, status) for config, status, _ in rows}),
        "twice": 2 * len(rows) - len(configs) - len(numbers),
    }  # fmt: skip


def _page(report: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    lines = [
        "# Parts of a Ray cluster, killed during a search", "",
        f"Three nodes on one machine, emulator workers, {arguments.budget} candidates; `kill -9` of each part. By",
        "`scripts/measure/cluster_faults.py`, compared with a search on one machine that nothing disturbs.", "",
        "| killed | rows before | exit code | after, s | rows then | resumed | rows | lost | counted twice |",
        "|---|---|---|---|---|---|---|---|---|",
        *(f"| {one['part']} | {one['rows_before']} | {one['code']} | {one['ended_s']:.1f} | {one['rows_after']} "
          f"| {one['resumed']} | {one['rows']} | {one['lost']} | {one['twice']} |" for one in report),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
