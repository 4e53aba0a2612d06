#!/usr/bin/env python3
"""Measures what limits a search on many GPUs, and simulates searches on up to 64; writes docs/results/cluster-plan.

    python scripts/measure/cluster_plan.py --workers 1,4,16,64 --out docs/results/cluster-plan

The simulated devices sleep as long as an examination takes; strategy, loop, leaderboard and Ray are real, and run on
this machine. Needs Ray; rows per second on PostgreSQL need its server installed.
"""

from __future__ import annotations

import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import common

from evoengine.engine.cluster.cluster import Cluster, open_cluster
from evoengine.engine.cluster.layout import HostSpec, Role
from evoengine.engine.cluster.service import ClusterService
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS
from evoengine.search.candidate.build import Builder
from evoengine.search.candidate.jobs import Challenge, Examine, Inspect, JobService
from evoengine.search.candidate.results import Candidate
from evoengine.search.settings import SearchSettings
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.leaderboard.test_leaderboard import key
from tests.postgres import find_binaries, running_server
from tests.ray_cluster import local_cluster
from tests.search.landscape import build_space
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, open_search

_NODES: Final = 4
_CALLS: Final = 2000
_ROWS: Final = 500
_COORDINATORS: Final = 4

_COORDINATOR: Final = """
import sys
from tests.leaderboard.test_leaderboard import *
url, first, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Leaderboard(url) as board:
    study = board.open_study(key())
    print("ready", flush=True)
    sys.stdin.readline()
    number = first
    while (lease := board.acquire_lease(study, config(number), budget, number)) is not LeaseStatus.BUDGET_FULL:
        if lease is LeaseStatus.GRANTED:
            board.record(study, evaluation(number, 5.0 + number), number)
        number += 1
"""


class Sleepers(SyntheticExaminer):
    """Device workers that sleep."""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class MakeSleepers:
    """Starts them on a host."""

    sleep_s: float

    def __call__(self, size: int, label: str) -> Any:
        return Sleepers(workers=size, slow_s=self.sleep_s)


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--workers", type=common.comma_list, default=["1", "4", "16", "64"], help="Numbers of devices.")
    parser.add_argument("--sleep-ms", type=common.comma_list, default=["60", "400"], help="Times of an examination.")
    parser.add_argument("--per-worker", type=int, default=30, help="Candidates per device.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0], "python": platform.python_version(),
        "rows_per_s": _rows_per_s(), "candidate_bytes": _candidate_bytes(), "searches": [],
    }  # fmt: skip
    with local_cluster(_NODES, 16) as nodes, open_cluster(nodes.address) as cluster:
        report["ray_calls_per_s"] = _calls_per_s(cluster)
        for sleep_ms in map(float, arguments.sleep_ms):
            for workers in map(int, arguments.workers):
                for way in ("pool", "ray"):
                    found = _simulate(way, cluster, workers, sleep_ms / 1000, arguments.per_worker)
                    report["searches"].append(found)
                    print(found, file=sys.stderr, flush=True)
    common.write_results(arguments.out, report, _page(report))
    return 0


def _candidate_bytes() -> dict[str, int]:
    """Bytes of a compiled candidate, as it travels, by family; of the first config that each search space names."""
    problem, target = NAMED_PROBLEMS[DEFAULT_PROBLEM], get_target("h200")
    found = {}
    for family in ("scalar", "mma", "wgmma"):
        space = find_space(family)
        config = space.build(problem, target).starts()[0]
        candidate = Builder(common.builder_setup(problem, target, [space])).build(config).candidate
        if candidate is not None:
            found[family] = len(pickle.dumps(candidate))
    return found


def _candidate() -> Candidate:
    """A candidate of the simulated compiler."""
    with tempfile.TemporaryDirectory() as folder:
        config = build_space(Path(folder)).config(0)
    found = SyntheticCompiler().build(config).candidate
    assert found is not None
    return found


def _calls_per_s(cluster: Cluster) -> float:
    """Examinations that take no time, through the service and its actors."""
    candidate = _candidate()
    with closing(_ray_service(cluster, 0.0, 64)) as service:
        service.submit(Examine(candidate)).result()
        start_s = time.perf_counter()
        for future in [service.submit(Examine(candidate)) for _ in range(_CALLS)]:
            future.result()
        return _CALLS / (time.perf_counter() - start_s)


def _rows_per_s() -> dict[str, float]:
    """Candidates that are leased and recorded per second, by one coordinator and by several on one study."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        found["SQLite, 1 coordinator"] = _record(f"sqlite:///{folder}/one.db", 1)
    if find_binaries() is not None:
        with running_server(durable=True) as server:
            for count in (1, _COORDINATORS):
                name = f"PostgreSQL, {count} coordinator{'s' if count > 1 else ''}"
                found[name] = _record(server.new_database(), count)
    return found


def _record(url: str, coordinators: int) -> float:
    with Leaderboard(url) as board:
        study = board.open_study(key())
    budget = coordinators * _ROWS
    words = [[str(number * 10 * _ROWS), str(budget)] for number in range(coordinators)]
    processes = [
        subprocess.Popen([sys.executable, "-c", _COORDINATOR, url, *word], cwd=common.ROOT, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        for word in words
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    start_s = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.wait()
    taken_s = time.perf_counter() - start_s
    with Leaderboard(url) as board:
        stored = board.evaluations(study)
    assert len({one.evaluation.config for one in stored}) == len(stored) == budget, "a duplicate or a loss"
    return budget / taken_s


class _FewerWorkers:
    """A cluster that plans fewer workers than its nodes have places for."""

    def __init__(self, cluster: Cluster, workers: int) -> None:
        self._cluster, self._workers = cluster, workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def plan(self, role: Role, *, on_gpu: bool) -> tuple[HostSpec, ...]:
        left, planned = self._workers, []
        for spec in self._cluster.plan(role, on_gpu=on_gpu):
            if left > 0:
                planned.append(replace(spec, size=min(spec.size, left)))
            left -= spec.size
        return tuple(planned)


def _ray_service(cluster: Cluster, sleep_s: float, workers: int) -> ClusterService:
    fewer: Any = _FewerWorkers(cluster, workers)
    return ClusterService(
        fewer, "device", on_gpu=False, kinds=frozenset((Examine, Challenge, Inspect)),
        make=lambda: MakeSleepers(sleep_s), objection=lambda _: "",
    )  # fmt: skip


@contextmanager
def _examiner(way: str, cluster: Cluster, sleep_s: float, workers: int) -> Iterator[JobService]:
    with closing(Sleepers(workers=workers, slow_s=sleep_s) if way == "pool" else
                 _ray_service(cluster, sleep_s, workers)) as service:  # fmt: skip
        yield service


def _simulate(way: str, cluster: Cluster, workers: int, sleep_s: float, per_worker: int) -> dict[str, Any]:
    """One search on sleeping devices."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        space = build_space(folder)
        budget = min(workers * per_worker, space.size)
        board = stack.enter_context(Leaderboard(folder / "board.db"))
        examiner = stack.enter_context(_examiner(way, cluster, sleep_s, workers))
        warm = SyntheticCompiler()
        candidate = warm.build(space.config(0)).candidate
        assert candidate is not None
        for future in [examiner.submit(Examine(candidate)) for _ in range(2 * workers)]:
            future.result()  # all hosts are ready
        settings = SearchSettings(budget=budget, strategy="random", compile_queue=6)
        search, _ = open_search(board, space, settings, SyntheticCompiler(workers=8), examiner, log_trials=True)
        start_s = time.perf_counter()
        result = search.run()
        taken_s = time.perf_counter() - start_s
    ideal = workers / sleep_s
    return {
        "way": way, "workers": workers, "sleep_ms": sleep_s * 1000, "candidates": budget,
        "rate": budget / taken_s, "share_of_ideal": budget / taken_s / ideal,
        "overhead_ms": result.overhead_ms_per_trial,
    }  # fmt: skip


def _page(report: dict[str, Any]) -> str:
    cores, load = report["cores"], report["load_before"]
    ways = {"ray": "Ray", "pool": "local pool"}
    lines = [
        "# A plan for 64 GPUs",
        "",
        f"Measured by `scripts/measure/cluster_plan.py` on {cores} cores (load {load:.1f} before). Ray, PostgreSQL and",
        "coordinator share them. Devices are simulated: they sleep as long as an examination takes. Strategy, loop,",
        "leaderboard and Ray are real.",
        "",
        "## Limits of each component",
        "",
        "| component | limit |",
        "|---|---|",
        f"| Ray: jobs per second through the service, 64 workers | {report['ray_calls_per_s']:.0f} |",
        *(f"| {name}: candidates per second | {rate:.0f} |" for name, rate in report["rows_per_s"].items()),
        *(f"| bytes of a candidate of `{name}` | {size} |" for name, size in report["candidate_bytes"].items()),
        "",
        "## Simulated searches",
        "",
        "| devices | examination | by | candidates per second | share of the devices' limit | coordinator's CPU |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['workers']} | {one['sleep_ms']:.0f} ms | {ways[one['way']]} | {one['rate']:.1f} "
        f"| {one['share_of_ideal']:.0%} | {one['overhead_ms']:.1f} ms a candidate |"
        for one in report["searches"]
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
