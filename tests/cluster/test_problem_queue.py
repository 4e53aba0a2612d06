"""``search --problems FILE --cluster-parts N`` on a real Ray cluster: its coordinators take problems from a queue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.calling import environment
from tests.ray_cluster import local_cluster

BUDGET = 2
PROBLEMS = {"first": "1x1x16x32", "second": "1x2x16x32", "third": "1x1x32x32"}
SEARCH = ("search", "--device", "emulator", "--family", "scalar", "--strategy", "random", "--no-starts",
          "--no-forecast", "--no-transfer", "--budget", str(BUDGET), "--problems", "set.toml")  # fmt: skip


@pytest.mark.slow
def test_coordinators_share_a_cluster_and_a_queue_of_problems(tmp_path: Path, shared_cache: Path) -> None:
    tables = [f'[[problems]]\nname = "{name}"\nproblem = "{shape}"\n' for name, shape in PROBLEMS.items()]
    (tmp_path / "set.toml").write_text("\n".join(tables))

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "evoengine", *words]
        return subprocess.run(
            command,
            check=False,
            cwd=tmp_path,
            env=environment(shared_cache),
            text=True,
            capture_output=True,
            timeout=300,
        )

    with local_cluster(2) as cluster:
        done = call(*SEARCH, "--cluster", cluster.address, "--cluster-parts", "2")
        assert done.returncode == 0, done.stderr
        refused = call(*SEARCH, "--cluster", cluster.address, "--cluster-parts", "3")
        assert refused.returncode == 2
        assert "fewer devices than 3 parts" in refused.stderr
    blocks = done.stdout.split("\n\n")
    assert [block for block in blocks if block.count("budget reached") > 1] == [], "results do not mix"
    rows = [row["problem"] for row in json.loads(call("leaderboard", "--json", "--status", "all").stdout)]
    assert Counter(rows) == {f"{shape}-fp16": BUDGET for shape in PROBLEMS.values()}
