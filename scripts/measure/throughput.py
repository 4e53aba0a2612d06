#!/usr/bin/env python3
"""Measures the wall time and throughput of whole searches; writes docs/results/<name>.json and .md.

    python scripts/measure/throughput.py --budget 500 --name throughput-default

Runs the search command several times, each with a new leaderboard, alternating between an empty compile cache and the
cache filled by the previous run. An empty cache is the representative case. Python's bytecode, the page cache and the
copy of Optuna's empty tables are warm in both. The times of the rows are taken from the leaderboard, those of the
champion from the search's log.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import common

_WALL: Final = {
    "start to the first row": "first_row_s",
    "start to the last row": "last_row_s",
    "start to the champion, inspected by all": "champion_s",
    "start to the end": "end_s",
}
_WARM: Final = """
from contextlib import suppress
import optuna, sqlalchemy, torch
import evoengine.cli.verbs.search, evoengine.costmodel.device
with suppress(ImportError):
    import cupy
"""
"""Program run before each search with an empty compile cache: warms up Python's bytecode and the page cache."""
_DEVICE_STAGES: Final = ("load", "parity", "bench", "recheck")


@dataclass(frozen=True)
class Run:
    """One search; seconds are counted from the start of its process."""

    cache: str
    """State of the compile cache at the start: empty or filled."""
    first_row_s: float
    last_row_s: float
    champion_s: float
    """Acceptance of the last champion, including its confirmation if compute-sanitizer is installed."""
    end_s: float
    search: dict[str, Any]
    """Output of ``search --json``."""

    @property
    def rate(self) -> float:
        """Distinct candidates per second, from the start of the process to the last row."""
        return float(self.search["new"]) / self.last_row_s


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--problem", default="default", help="Name or shape.")
    parser.add_argument("--budget", type=int, default=500, help="Candidates per search.")
    parser.add_argument("--device", default="auto", help="Device, as for 'search'.")
    parser.add_argument("--runs", type=int, default=2, help="Searches; odd ones start with an empty compile cache.")
    parser.add_argument("--name", default="throughput-default", help="Name of the files, without a suffix.")
    parser.add_argument("--keep", type=Path, help="Folder that keeps the leaderboards.")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="Folder of the files.")
    arguments = parser.parse_args()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.runs):
            runs.append(_run(arguments, Path(folder), number))
            print(_line(runs[-1]), flush=True)
            _write(arguments, runs)
    return 0


def _write(arguments: argparse.Namespace, runs: list[Run]) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "command": f"scripts/measure/throughput.py --problem {arguments.problem} --budget {arguments.budget}",
    }
    report = facts | {"runs": [asdict(run) for run in runs]}
    (arguments.out / f"{arguments.name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.out / f"{arguments.name}.md").write_text(_page(facts, runs))


def _run(arguments: argparse.Namespace, folder: Path, number: int) -> Run:
    db, cache = (arguments.keep or folder) / f"{arguments.name}-{number}.db", folder / f"cache{number // 2}"
    log = folder / f"{number}.jsonl"
    command = [sys.executable, "-m", "evoengine", "search", "--problem", arguments.problem, "--json", "--log", str(log)]
    command += ["--device", arguments.device, "--budget", str(arguments.budget), "--db", str(db)]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start compiles hundreds of modules
    if not cache.exists():
        subprocess.run([sys.executable, "-c", _WARM], env=environment, cwd=common.ROOT, check=True)
    start_s = time.time()
    done = subprocess.run(command, env=environment, cwd=common.ROOT, stdout=subprocess.PIPE, check=True)
    end_s = time.time() - start_s
    with closing(sqlite3.connect(db)) as connection:
        rows = connection.execute("SELECT min(created_at), max(created_at) FROM evo_evaluations").fetchone()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    accepted = max(event["time"] for event in events if event["event"] in ("crowned", "confirmed"))
    first_s, last_s, champion_s = (_seconds(stamp) - start_s for stamp in (*rows, accepted))
    return Run("filled" if number % 2 else "empty", first_s, last_s, champion_s, end_s, json.loads(done.stdout))


def _seconds(stamp: str) -> float:
    """Unix time of a UTC timestamp."""
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()


def _line(run: Run) -> str:
    wall = ", ".join(f"{name} {getattr(run, field):.1f} s" for name, field in _WALL.items())
    return (
        f"cache {run.cache}: {wall}; {run.rate:.1f} candidates/s from the start, {run.search['candidates_per_s']:.1f} "
        f"in the search, overhead {run.search['overhead_ms_per_trial']:.1f} ms per trial"
    )


def _page(facts: dict[str, Any], runs: list[Run]) -> str:
    search = runs[0].search
    kind = "predicted on" if search["predicted"] else "measured on"
    rows: list[tuple[str, list[str]]] = [("compile cache", [run.cache for run in runs])]
    rows += [(f"{name}, s", [f"{getattr(run, field):.1f}" for run in runs]) for name, field in _WALL.items()]
    rows += [
        ("candidates a second, from the start to the last row", [f"**{run.rate:.1f}**" for run in runs]),
        ("candidates a second, in the search itself", [f"{run.search['candidates_per_s']:.1f}" for run in runs]),
        ("own CPU ms a trial: strategy, store, loop", [f"{run.search['overhead_ms_per_trial']:.1f}" for run in runs]),
        ("own share of all work", [f"{run.search['overhead_of_work']:.1%}" for run in runs]),
        ("own thread at work, share of the search's time", [f"{run.search['overhead_share']:.0%}" for run in runs]),
        ("device in use, share of the search's time", [f"{run.search['device_share']:.0%}" for run in runs]),
        ("one compilation, ms", [_mean_ms(run, ("render", "compile")) for run in runs]),
        ("one candidate on the device, ms", [_mean_ms(run, _DEVICE_STAGES) for run in runs]),
        ("champion, µs", [f"{run.search['champion']['median_us']:.2f}" for run in runs]),
    ]
    table = "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)
    names = list(dict.fromkeys(name for run in runs for name in _stages(run)))
    stages = "\n".join(f"| {name} | {' | '.join(_stage(run, name) for run in runs)} |" for name in names)
    return f"""# Throughput of a search of {search["evaluated"]}, {kind} {search["device"]}

{facts["at"]}, {facts["cores"]} cores, Python {facts["python"]}; `{facts["command"]}`, problem {search["problem"]},
strategy {search["strategy"]}. Each run is a new process with a new leaderboard; times count from its start.

| | {" | ".join(f"run {number + 1}" for number in range(len(runs)))} |
|---|{"---:|" * len(runs)}
{table}

Time by stage: seconds summed over the candidates, and milliseconds per candidate. Compilers run concurrently, one per
core; the device's worker takes precedence.

| stage | {" | ".join(f"run {number + 1}" for number in range(len(runs)))} |
|---|{"---:|" * len(runs)}
{stages}
"""


def _stage(run: Run, name: str) -> str:
    seconds = _stages(run).get(name, 0.0)
    return f"{seconds:.1f} s, {_mean_ms(run, (name,))} ms"


def _stages(run: Run) -> dict[str, float]:
    stages: dict[str, float] = run.search["stage_seconds"]
    return stages


def _mean_ms(run: Run, names: tuple[str, ...]) -> str:
    count = run.search["new"] + run.search["duplicates"]
    return f"{1e3 * sum(_stages(run).get(name, 0.0) for name in names) / count:.0f}"


if __name__ == "__main__":
    common.run(main)
