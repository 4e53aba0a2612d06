#!/usr/bin/env python3
"""Measures how a search scales with the GPUs of one host: by the local pool and by Ray; writes a page of docs/results.

    python scripts/measure/scaling.py --out docs/results/scaling-4xh200
    python scripts/measure/scaling.py --device emulator --counts 1,2 --budget 12 --problems tiny --kernels 3 --repeats 3

For each problem and number of GPUs, one search by ``--device cuda:0,1,…`` and one by ``--cluster``, each with an empty
leaderboard and an empty compile cache, all of it ``--runs`` times. By default the candidates are random ones of one
seed: a strategy that learns proposes others in each search, whose costs differ by more than the loss that is to be
found. With ``--bare`` they are the same in all searches of a problem. Each search gets as many GPUs as it uses and the
same share of the host's cores, so that a part of the host is compared with the whole. With ``--side-by-side``,
searches that fit on the host together run at once. Then the same kernels are timed on each GPU, and one of them alone
and beside compilers on all cores. Ray is started by the script, on this host.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import common

from evoengine.engine.devices.gpus import find_gpus
from evoengine.engine.options.problem import ProblemOptions
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.search_plan import make_plan
from evoengine.engine.search_services import open_services
from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.candidate.jobs import Compile, Examine
from evoengine.search.candidate.results import Candidate

_PROBLEMS: Final = ("default", "16x12x197x64", "4x16x2048x128")
_DEVICE_STAGES: Final = ("load", "parity", "bench", "recheck")
_START_S: Final = 60.0
_BARE: Final = ("--no-forecast", "--no-skip")


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulator"), help="Kind of device.")
    parser.add_argument("--counts", type=common.comma_list, help="Numbers of devices. [default: 1, 2, 4, … all]")
    parser.add_argument("--problems", type=common.comma_list, default=list(_PROBLEMS), help="Names or shapes.")
    parser.add_argument("--budget", type=int, default=1000, help="Candidates per search.")
    parser.add_argument("--runs", type=int, default=1, help="Searches of each kind.")
    parser.add_argument("--strategy", default="random", help="Strategy of the searches.")
    parser.add_argument("--bare", action="store_true", help="Search without forecasts, which learn from outcomes.")
    parser.add_argument("--ways", type=common.comma_list, default=["pool", "ray"], help="pool, ray or both.")
    parser.add_argument("--side-by-side", action="store_true", help="Run searches at once that fit on the host.")
    parser.add_argument("--kernels", type=int, default=50, help="Kernels that are timed on each device; 0 for none.")
    parser.add_argument("--repeats", type=int, default=30, help="Examinations of one kernel, alone and busy.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    arguments = parser.parse_args()
    devices = len(find_gpus()) if arguments.device == "cuda" else len(os.sched_getaffinity(0))
    counts = [int(count) for count in arguments.counts or [str(2**n) for n in range(9) if 2**n <= devices]]
    report: dict[str, Any] = {
        "gpus": [gpu.name for gpu in find_gpus()], "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(), "device": arguments.device, "budget": arguments.budget,
        "strategy": arguments.strategy, "searches": [], "agreement": [], "noise": None,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        kinds = itertools.product(arguments.problems, range(arguments.runs), counts, arguments.ways)
        searches = [
            _Search(problem, count, way, Path(folder) / f"{problem}-{run}-{count}-{way}.db")
            for problem, run, count, way in kinds
        ]
        host = Host(devices, sorted(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(devices if arguments.side_by_side else 1) as threads:
            for found in threads.map(lambda search: _run(arguments, search, host), searches):
                report["searches"].append(found)
                print(found, file=sys.stderr, flush=True)
                if arguments.out is not None:  # what is measured is never lost
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    arguments.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if arguments.kernels:
            _time_kernels(arguments, searches[0].db, max(counts), report)
    common.write_results(arguments.out, report, _page(report))
    return 0


# -- searches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Search:
    """A search to run: with ``count`` devices, by the local pool or by Ray."""

    problem: str
    count: int
    way: str
    db: Path


@dataclass(frozen=True)
class _Part:
    """Neighbouring devices of the host, with their share of its cores."""

    devices: tuple[int, ...]
    cores: frozenset[int]


class Host:
    """Lends parts of the host to searches, in the order in which they ask."""

    def __init__(self, devices: int, cores: Sequence[int]) -> None:
        self._cores, self._each = cores, max(1, len(cores) // devices)
        self._free = set(range(devices))
        self._all = devices
        self._queue, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def lend(self, count: int) -> Iterator[_Part]:
        """Waits until ``count`` neighbouring devices are free and yields them."""
        with self._queue, self._changed:
            self._changed.wait_for(lambda: self._first(count) is not None)
            devices = self._first(count)
            assert devices is not None
            self._free -= set(devices)
        try:
            yield _Part(devices, frozenset(core for device in devices for core in self._cores_of(device)))
        finally:
            with self._changed:
                self._free |= set(devices)
                self._changed.notify_all()

    def _first(self, count: int) -> tuple[int, ...] | None:
        groups = (tuple(range(start, start + count)) for start in range(0, self._all - count + 1, count))
        return next((group for group in groups if self._free.issuperset(group)), None)

    def _cores_of(self, device: int) -> Sequence[int]:
        return self._cores[device * self._each : (device + 1) * self._each]


def _run(arguments: argparse.Namespace, search: _Search, host: Host) -> dict[str, Any]:
    """Runs one search on a free part of the host.

    The rate counts candidates that a device examined, from when every device has one. Starting Python, Ray and GPUs is
    left out, and so are candidates that did not compile: a search stores these alone until it has a device.
    """
    with ExitStack() as stack:
        part = stack.enter_context(host.lend(search.count))
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        words = ["search", "--problem", search.problem, "--budget", str(arguments.budget), "--db", str(search.db),
                 "--json", "-q", "--strategy", arguments.strategy, *(_BARE if arguments.bare else ())]  # fmt: skip
        if search.way == "ray":
            address = stack.enter_context(_ray(arguments.device, part))
            words += ["--cluster", address, "--device", arguments.device]
        else:
            numbers = ",".join(map(str, range(search.count)))  # as CUDA_VISIBLE_DEVICES numbers them
            words += ["--device", f"{arguments.device}:{numbers}"]
        start_s = time.time()
        done = _on(part, [sys.executable, "-m", "evoengine", *words], stdout=subprocess.PIPE, cache=cache)
        output, _ = done.communicate()
        wall_s = time.time() - start_s
        if done.returncode != 0:
            raise SystemExit(f"{search}: exit code {done.returncode}")
    return _measured(search, output, wall_s)


def _on(part: _Part, command: Sequence[str], *, cache: str = "", **popen: Any) -> subprocess.Popen[bytes]:
    """Starts a command that sees only a part of the host."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if visible != [""] else [str(number) for number in range(max(part.devices) + 1)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(names[device] for device in part.devices)}
    if cache:
        environment["EVOENGINE_CACHE"] = cache
    cores = ",".join(map(str, sorted(part.cores)))
    return subprocess.Popen(["taskset", "-c", cores, *command], cwd=common.ROOT, env=environment, **popen)


def _measured(search: _Search, output: bytes, wall_s: float) -> dict[str, Any]:
    """Reads the rates from what a search printed and stored."""
    problem, count, way, db = search.problem, search.count, search.way, search.db
    found = json.loads(output)
    with closing(sqlite3.connect(db)) as file:
        configs = [key for (key,) in file.execute("SELECT config_key FROM evo_evaluations ORDER BY config_key")]
        rows = [
            _Row(seconds, json.loads(telemetry or "{}").get("gpu", ""), json.loads(stages))
            for seconds, telemetry, stages in file.execute(
                "SELECT julianday(created_at) * 86400, telemetry_json, stage_seconds_json FROM evo_evaluations "
                "ORDER BY created_at"
            )
        ]
    timed = [row for row in rows if row.gpu] or rows  # an emulator has no UUID
    begins: dict[str, float] = {}
    for row in timed:
        begins.setdefault(row.gpu, row.seconds)
    counted = [row for row in timed if row.seconds > max(begins.values())]
    span_s = max(rows[-1].seconds - max(begins.values()), 1e-3)
    return {
        "problem": problem, "count": count, "way": way, "wall_s": wall_s, "span_s": span_s, "new": found["new"],
        "examined": len(counted), "each_ms": statistics.mean([row.device_s for row in counted] or [0.0]) * 1e3,
        "rate": len(counted) / span_s, "devices_busy": found["device_share"], "loop_ms": found["overhead_ms_per_trial"],
        "compile_s": found["stage_seconds"].get("compile", 0.0) / max(1, found["new"]),
        "busy_by_gpu": _busy(counted, span_s), "stages_by_gpu": _stages(counted),
        "best_us": (found["best"] or {}).get("median_us"), "lost": found["lost"],
        "configs": hashlib.sha256("\n".join(configs).encode()).hexdigest(),
    }  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """A stored candidate: when it was stored, which GPU timed it, and the seconds of its stages."""

    seconds: float
    gpu: str
    stages: Mapping[str, float]

    @property
    def device_s(self) -> float:
        """Seconds that a device spent on it."""
        return sum(self.stages.get(stage, 0.0) for stage in _DEVICE_STAGES)


def _busy(rows: Sequence[_Row], span_s: float) -> dict[str, float]:
    """Share of the time in which each GPU examined a candidate that it timed, by the last digits of its UUID."""
    busy: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row.gpu:
            busy[row.gpu[-4:]] += row.device_s
    return {gpu: seconds / span_s for gpu, seconds in sorted(busy.items())}


def _stages(rows: Sequence[_Row]) -> dict[str, dict[str, float]]:
    """Candidates of each GPU and the mean milliseconds of their stages on it, by the last digits of its UUID."""
    by_gpu: defaultdict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        by_gpu[row.gpu[-4:]].append(row)
    return {
        gpu: {"examined": len(own)}
        | {f"{stage}_ms": statistics.mean(row.stages.get(stage, 0.0) for row in own) * 1e3 for stage in _DEVICE_STAGES}
        for gpu, own in sorted(by_gpu.items())
    }


@contextmanager
def _ray(device: str, part: _Part) -> Iterator[str]:
    """Starts a head of Ray on a part of this host, alone in its own process group, and yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    count = len(part.devices)
    cores = len(part.cores) if device == "cuda" else count
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
                   f"--num-cpus={cores}", f"--num-gpus={count if device == 'cuda' else 0}", f"--temp-dir={folder}",
                   "--include-dashboard=false", "--disable-usage-stats"]  # fmt: skip
        log = Path(folder) / "start.log"
        with log.open("wb") as output:
            head = _on(part, command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield _address_in(log, head)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            head.wait()


def _address_in(log: Path, head: subprocess.Popen[bytes]) -> str:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and head.poll() is None:
        found = re.search(r"ray start --address='([^']+)'", log.read_text())
        if found is not None:
            return found[1]
        time.sleep(0.2)
    raise SystemExit(f"Ray did not start: {log.read_text()[-500:]}")


# -- the same kernels on each device ----------------------------------------------------------------------------------


def _time_kernels(arguments: argparse.Namespace, db: Path, count: int, report: dict[str, Any]) -> None:
    """Times the best kernels of a search on each device, and one of them beside compilers."""
    with Leaderboard(db, create=False) as board:
        rows = board.rows(RowFilter(limit=arguments.kernels))
    configs = [row.full_config for row in rows]
    problem = ProblemOptions(arguments.problems[0]).build()
    times: list[list[float]] = []
    for number in range(count):
        options = SearchOptions(problem, device=f"{arguments.device}:{number}", racing=False, inputs_seed=1)
        with ExitStack() as stack:
            compiler, examiner = open_services(make_plan(options), stack)
            built = [future.result().candidate for future in [compiler.submit(Compile(one)) for one in configs]]
            candidates = [one for one in built if one is not None]
            times.append([_median_us(examiner, one) for one in candidates])
            if number == 0:
                report["noise"] = _noise(compiler, examiner, candidates[0], configs, arguments.repeats)
    for kernel in zip(*times, strict=True):
        middle = statistics.median(kernel)
        report["agreement"].append({"us": list(kernel), "spread": (max(kernel) - min(kernel)) / middle})


def _median_us(examiner: Any, candidate: Candidate) -> float:
    timing = examiner.submit(Examine(candidate)).result().timing
    assert timing is not None, "a kernel that a search has timed"
    return float(timing.median_us)


def _noise(compiler: Any, examiner: Any, candidate: Candidate, configs: list[Config], repeats: int) -> dict[str, Any]:
    """Examines one kernel alone and while all compilers are busy."""
    alone = [_median_us(examiner, candidate) for _ in range(repeats)]
    beside: list[float] = []
    for _ in range(repeats):
        jobs = [compiler.submit(Compile(_other(config, len(beside)))) for config in configs[: 2 * compiler.workers]]
        beside.append(_median_us(examiner, candidate))
        for job in jobs:
            job.cancel()
    medians = statistics.median(alone), statistics.median(beside)
    return {"compilers": compiler.workers, "alone_us": alone, "beside_us": beside,
            "difference": medians[1] / medians[0] - 1}  # fmt: skip


def _other(config: Config, number: int) -> Config:
    """A config of the same family that the compile cache does not have, if its tunables allow one."""
    values = config.as_dict()
    names = [name for name, value in values.items() if isinstance(value, bool)]
    for bit, name in enumerate(names):
        if (number >> (bit % 4)) & 1:
            values[name] = not values[name]
    return Config.of(config.family, values)


# -- the page ---------------------------------------------------------------------------------------------------------


def _page(report: dict[str, Any]) -> str:
    names = ", ".join(sorted({f"{report['gpus'].count(name)} x {name}" for name in report["gpus"]})) or "no GPU"
    lines = [
        "# Scaling over the devices of one host",
        "",
        f"{names}, {report['cores']} cores; {report['budget']} candidates per search, strategy {report['strategy']},",
        "empty compile cache. By `scripts/measure/scaling.py`. The rate counts from when every device has a row to the",
        "last row, and only candidates that a device examined; *each* is their mean time on it; *of linear* is the",
        "rate's share of the median rate on one device, times the devices; *loop* is CPU time of the search's own",
        "thread and *compile* the time of one compilation, both per candidate; the last column is the whole command.",
        "",
        "| problem | devices | by | candidates a second | of linear | each, ms | busy | loop, ms | compile, s | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    single: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for one in report["searches"]:
        if one["count"] == 1:
            single[one["problem"], one["way"]].append(one["rate"])
    for one in report["searches"]:
        base = single[one["problem"], one["way"]]
        linear = f"{one['rate'] / statistics.median(base) / one['count']:.2f}" if base else ""
        by_gpu = "" if not one["busy_by_gpu"] else f" ({', '.join(f'{v:.0%}' for v in one['busy_by_gpu'].values())})"
        lines.append(
            f"| {one['problem']} | {one['count']} | {'Ray' if one['way'] == 'ray' else 'pool'} | {one['rate']:.2f} "
            f"| {linear} | {one['each_ms']:.0f} | {one['devices_busy']:.0%}{by_gpu} | {one['loop_ms']:.1f} "
            f"| {one['compile_s']:.2f} | {one['wall_s']:.0f} |"
        )
    kinds = {(one["problem"], one["configs"]) for one in report["searches"]}
    if len(report["searches"]) > len(kinds) == len({problem for problem, _ in kinds}):
        lines += ["", "The searches of each problem have the same candidates."]
    spreads = sorted(kernel["spread"] for kernel in report["agreement"])
    if spreads:
        lines += ["", f"The same {len(spreads)} kernels on each device: their times differ by"]
        lines += [f"{spreads[len(spreads) // 2]:.2%} (median), {spreads[-1]:.2%} at most."]
    noise = report["noise"]
    if noise is not None:
        lines += ["", f"One kernel beside {noise['compilers']} busy compilers: {noise['difference']:+.2%} of its time"]
        lines += [f"alone (medians of {len(noise['alone_us'])} examinations each)."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
