#!/usr/bin/env python3
"""Searches 500 candidates of which 200 are faulty on purpose; writes docs/results/<name>.json and .md.

    python scripts/measure/fault_injection.py                 # on the GPU, or on the emulator without one
    python scripts/measure/fault_injection.py --small         # a fifth of the candidates
    python scripts/measure/fault_injection.py --no-disk       # without the full disk

Runs these searches by their command line: one with all faults, during which another process locks the leaderboard; one
with only the good candidates on the same inputs (on a GPU, some of them twice to measure the noise); and one whose disk
becomes full, which is then resumed. The exit code is 1 if a candidate has a wrong status or a good candidate is
affected: its verdict differs, or the good candidates' times differ by more than noise (tests/faults/comparison.py).

Racing is off: it drops a candidate depending on the best time so far, hence on the candidates before it, so a good
candidate could be pruned in one search and not in the other without any fault.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import sqlite3
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import common

from evoengine.model import Config, Evaluation, Status
from evoengine.search.measurement_stats import MeasurementStats
from tests.faults.comparison import NEGLIGIBLE, NOISE_FACTOR, spread, within_noise
from tests.faults.disk import SmallDisk
from tests.faults.injection import (
    FAULTS,
    GOOD,
    Plan,
    Run,
    full_counts,
    good_rows,
    hold_lock,
    mistakes,
    search,
    verdict_facts,
)

Rows = Mapping[Config, Evaluation]

GPU_PROBLEM: Final = "1x8x1024x16"
"""Large enough that kernel time dominates launch time, which differs by 0.15 us between a new and an older process
(docs/results/launch-cost-h200.md).
"""
AGAIN: Final = 120
"""Good candidates that are searched a second time without faults, to measure the noise."""
LOCKED_S: Final = 3.0
ON_DISK: Final = 30, 150_000
"""Good candidates of the search on a full disk, and the bytes left after its first rows."""
ON_DISK_GPU: Final = 120, 600_000
"""The same on a GPU, which finishes many candidates between two commits; commits are atomic."""


def main() -> int:
    arguments = _arguments()
    device = _device(arguments.device)
    on_gpu = device == "cuda"
    counts = full_counts(device)
    counts = {kind: max(1, count // 5) for kind, count in counts.items()} if arguments.small else counts
    plan = Plan(counts, device, GPU_PROBLEM if on_gpu else "1x1x16x8", 10.0 if on_gpu else 20.0, 0 if on_gpu else 2)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        report = _report(folder, plan, with_disk=arguments.disk)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = arguments.name or f"part-3-faults-{_short_name(report)}"
    (arguments.out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    text = _markdown(report)
    (arguments.out / f"{name}.md").write_text(text)
    print(text)
    good = report["good"]
    wrong = [*report["mistakes"], *good["changed"], *(report["disk"] or {}).get("mistakes", ())]
    wrong += [] if good["within_noise"] else ["the good candidates' times changed by more than noise"]
    print("\n".join(["", *wrong]) if wrong else "")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto", help="Where kernels run.")
    parser.add_argument("--small", action="store_true", help="Use a fifth of all candidates.")
    parser.add_argument("--disk", action=argparse.BooleanOptionalAction, default=True, help="Also fill a disk.")
    parser.add_argument("--name", default="", help="Name of the files, without a suffix.")
    parser.add_argument("--keep", type=Path, help="Empty folder that keeps the leaderboards.")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="Folder of the files.")
    return parser.parse_args()


def _device(name: str) -> str:
    from evoengine.engine.devices.environment import diagnose

    return name if name != "auto" else diagnose().devices[0]


def _short_name(report: dict[str, Any]) -> str:
    words = str(report["device"]).lower().replace("nvidia", "").split()
    return "emulator" if report["predicted"] else "-".join(words)


# ---- the searches ----------------------------------------------------------------------------------------------------


def _report(folder: Path, plan: Plan, *, with_disk: bool) -> dict[str, Any]:
    cache = folder / "cache"
    load_before = os.getloadavg()[0]
    faulty = _search(folder, "faults", plan, cache, with_lock=True)
    gaps_s = _device_gaps(folder / "faults" / "board.db")
    clean_plan = replace(plan, counts={GOOD: plan.counts[GOOD]})
    clean = _search(folder, "clean", clean_plan, cache)
    again_plan = replace(clean_plan, counts={GOOD: min(AGAIN, clean_plan.counts[GOOD])})
    again = None if faulty.output["predicted"] else _search(folder, "again", again_plan, cache)
    hang_s = _cost_of_hangs(gaps_s) if plan.device == "cuda" else _extra_seconds(folder, clean_plan, clean, cache)
    output = faulty.output
    judged = [(plan, faulty), (clean_plan, clean), *([] if again is None else [(again_plan, again)])]
    on_disk = ON_DISK if output["predicted"] else ON_DISK_GPU
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "load": (load_before, os.getloadavg()[0]),
        },
        "device": output["device"],
        "predicted": output["predicted"],
        "problem": output["problem"],
        "candidates": plan.budget,
        "faulty": plan.budget - plan.counts[GOOD],
        "wall_s": {"with faults": faulty.wall_s, "without": clean.wall_s},
        "seconds_per_hang": hang_s,
        "signals": dict(faulty.signals),
        "kinds": [_kind_row(plan, kind, faulty) for kind in plan.counts],
        "mistakes": [wrong for a_plan, run in judged for wrong in mistakes(a_plan, run)],
        "good": _compared(good_rows(clean_plan, faulty), clean.rows, None if again is None else again.rows),
        "disk": _full_disk(folder, clean_plan, cache, *on_disk) if with_disk else None,
    }


def _search(folder: Path, name: str, plan: Plan, cache: Path, *, with_lock: bool = False) -> Run:
    """Runs one search in its own folder and prints its duration."""
    own = folder / name
    own.mkdir(exist_ok=True)
    database = own / "board.db"
    lock = partial(hold_lock, database, after_rows=20, seconds=LOCKED_S) if with_lock else None
    run = search(own, plan, database, cache=cache, meanwhile=lock)
    print(
        f"{name}: {len(run.rows)} candidates in {run.wall_s:.1f} s, exit code {run.code}", file=sys.stderr, flush=True
    )
    if run.code != 0:
        raise SystemExit(f"the search '{name}' failed with exit code {run.code}: {run.errors}")
    return run


def _kind_row(plan: Plan, kind: str, run: Run) -> dict[str, Any]:
    rows = [run.rows[config] for config in plan.configs(kind) if config in run.rows]
    status = FAULTS[kind].expected(plan.device)[0]
    reasons = Counter(row.reason for row in rows)
    return {
        "fault": kind,
        "candidates": plan.counts[kind],
        "status": status.value,
        "right": sum(row.status is status for row in rows),
        "reason": reasons.most_common(1)[0][0] if reasons else "",
    }


def _compared(rows: Rows, alone: Rows, again: Rows | None) -> dict[str, Any]:
    """Compares the good candidates among faulty ones with the same ones alone, and two searches without faults."""
    changed = []
    for config, row in rows.items():
        other = alone[config]
        if verdict_facts(row) != verdict_facts(other):
            changed.append(f"{config}: {row.status.value} {row.reason}, alone {other.status.value} {other.reason}")
    disturbed = spread(rows, alone, to_baseline=True)
    noise = None if again is None else spread(again, alone, to_baseline=True)
    searches = {"with faults": rows, "without": alone, "without, again": again}
    raw = {"with faults": spread(rows, alone, to_baseline=False)}
    if again is not None:
        raw["without, again"] = spread(again, alone, to_baseline=False)
    return {
        "candidates": len(rows),
        "changed": changed,
        "within_noise": within_noise(disturbed, noise),
        "times": asdict(disturbed),
        "noise": None if noise is None else asdict(noise),
        "microseconds": {name: asdict(found) for name, found in raw.items()},
        "measured": {name: _gpu_facts(found) for name, found in searches.items() if found is not None},
    }


def _gpu_facts(rows: Rows) -> dict[str, Any]:
    """Times, clock and throttling of the GPU in one search."""
    tally = MeasurementStats()
    for row in rows.values():
        tally = tally.with_one(row)
    timings = [row.timing for row in rows.values() if row.timing is not None]
    baselines = [timing.baseline_us for timing in timings if timing.baseline_us is not None]
    return {
        "median_us": statistics.median(timing.median_us for timing in timings),
        "baseline_us": statistics.median(baselines) if baselines else None,
        "sm_mhz": tally.sm_mhz,
        "throttled": tally.throttled,
    }


# ---- the cost of a hang ----------------------------------------------------------------------------------------------


def _device_gaps(database: Path) -> list[tuple[str, float]]:
    """Status of each candidate that ran on the device, in order, and the seconds since the previous one.

    A hang and an unresponsive driver have the same status; the reason distinguishes them.
    """
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT status, reason, created_at FROM evo_evaluations ORDER BY id").fetchall()
    seen = {Status.OK, Status.PARITY_FAILED, Status.LAUNCH_FAILED, Status.TIMEOUT, Status.CRASHED}
    hang = re.compile(FAULTS["hang"].expected("cuda")[1])
    times = [
        ("hang" if hang.search(reason) else status, datetime.fromisoformat(at))
        for status, reason, at in rows
        if Status(status) in seen
    ]
    return [(status, (at - before).total_seconds()) for (_, before), (status, at) in itertools.pairwise(times)]


def _cost_of_hangs(gaps_s: list[tuple[str, float]]) -> float:
    """Median seconds of a hang and the next candidate, less those of two good candidates.

    If every hang is followed by another fault, the cost of that fault is included.
    """
    usual_s = statistics.median(gap for status, gap in gaps_s if status == Status.OK.value)
    hangs = [(gap, after) for (status, gap), after in itertools.pairwise(gaps_s) if status == "hang"]
    before_good = [pair for pair in hangs if pair[1][0] == Status.OK.value]
    costs = [gap + next_gap - 2 * usual_s for gap, (_, next_gap) in before_good or hangs]
    return statistics.median(costs) if costs else float("nan")


def _extra_seconds(folder: Path, clean_plan: Plan, clean: Run, cache: Path) -> float:
    """Wall seconds that a hang adds to the search without faults, as a mean of six."""
    hangs = 6
    plan = replace(clean_plan, counts={**clean_plan.counts, "hang": hangs})
    return (_search(folder, "hangs", plan, cache).wall_s - clean.wall_s) / hangs


# ---- a full disk -----------------------------------------------------------------------------------------------------


def _full_disk(folder: Path, clean_plan: Plan, cache: Path, candidates: int, free_bytes: int) -> dict[str, Any]:
    """Searches good candidates on a disk that becomes full after a few of them, and resumes once space is free."""
    own, small = folder / "disk", folder / "small"
    own.mkdir()
    small.mkdir()
    plan = replace(clean_plan, counts={GOOD: candidates})
    with SmallDisk(small) as disk:
        database, kind = small / "board.db", disk.kind
        begun = search(own, replace(plan, first=3), database, cache=cache)
        if begun.code != 0:
            raise SystemExit(f"the search 'disk' failed with exit code {begun.code}: {begun.errors}")
        cut_short = search(own, plan, database, cache=cache, under=disk.shrink(free_bytes))
        disk.grow()
        whole = search(own, plan, database, cache=cache)
    wrong = mistakes(plan, whole)
    if cut_short.code != 2 or not 3 < len(cut_short.rows) < plan.budget:
        wrong.append(f"the disk did not become full: exit code {cut_short.code}, {len(cut_short.rows)} rows")
    wrong += [f"{config}: changed" for config, row in cut_short.rows.items() if whole.rows.get(config) != row]
    return {
        "kind": kind,
        "stored_before": len(cut_short.rows),
        "said": cut_short.errors.strip().replace(str(database), "board.db"),
        "stored_after": len(whole.rows),
        "mistakes": wrong,
    }


# ---- the page --------------------------------------------------------------------------------------------------------


def _markdown(report: dict[str, Any]) -> str:
    machine, good, disk, wall_s = report["machine"], report["good"], report["disk"], report["wall_s"]
    kind = "predicted for" if report["predicted"] else "on"
    load = "{:.1f} before, {:.1f} after".format(*machine["load"])
    about = f"{report['when']}, {machine['cores']} cores (load {load}), Python {machine['python']}, "
    about += f"problem {report['problem']}"
    verdicts = f"{len(good['changed'])} of {good['candidates']} have a different verdict than without the faults"
    walls = f"{wall_s['with faults']:.1f} s with the faults, {wall_s['without']:.1f} s for the good candidates alone"
    lines = [
        f"# {report['faulty']} faults among {report['candidates']} candidates, {kind} {report['device']}",
        "",
        f"{about}; written by `scripts/measure/fault_injection.py`.",
        "",
        "| fault | candidates | with the right status | status | most frequent reason |",
        "|---|---|---|---|---|",
        *(_kind_line(row) for row in report["kinds"]),
        "",
        f"- Good candidates: {verdicts}.",
        *_time_lines(good, predicted=report["predicted"]),
        f"- Wall time: {walls}; {LOCKED_S:g} s of it the leaderboard was locked by another process.",
        f"- A hang costs {report['seconds_per_hang']:.2f} s of wall time.",
    ]
    if disk is not None:
        lines += [
            f"- After {disk['stored_before']} rows {disk['kind']} ended a search: `{disk['said']}`.",
            f"- The same command then resumed the search: {disk['stored_after']} rows in total, none changed.",
        ]
    return "\n".join(lines) + "\n"


def _time_lines(good: dict[str, Any], *, predicted: bool) -> list[str]:
    """Lines about the good candidates' times."""
    if predicted:
        return [f"- {good['times']['same']} of {good['times']['kernels']} have exactly the same predicted time."]
    raw, verdict = good["microseconds"], "within" if good["within_noise"] else "BEYOND"
    judged = (
        f"This is {verdict} noise: 19 of 20 may differ by {NEGLIGIBLE:.0%}, or by {NOISE_FACTOR:g} times the "
        "difference without faults."
    )
    lines = [
        (
            f"- Times of good candidates, in multiples of the baseline measured beside each. With faults over without: "
            f"{_summary(good['times'])}; a second search without faults over the first: {_summary(good['noise'])}. "
            f"{judged}"
        ),
        (
            f"- The same in microseconds. With faults over without: {_summary(raw['with faults'])}; a second search "
            f"without faults over the first: {_summary(raw['without, again'])}."
        ),
    ]
    for name, facts in good["measured"].items():
        lines.append(
            f"- {name}: median {facts['median_us']:.2f} us, baseline {facts['baseline_us']:.2f} us, SM clock "
            f"{facts['sm_mhz']} MHz, {facts['throttled']} throttled."
        )
    return lines


def _summary(found: dict[str, Any]) -> str:
    return (
        f"median {found['median']:.3f}, 5 % to 95 % {found['p5']:.3f} to {found['p95']:.3f}, "
        f"19 of 20 differ by {found['off95']:.1%} at most"
    )


def _kind_line(row: dict[str, Any]) -> str:
    reason = row["reason"].replace("|", "\\|")
    shown = reason if len(reason) <= 110 else f"{reason[:110]}…"
    return f"| {row['fault']} | {row['candidates']} | {row['right']} | {row['status']} | {shown} |"


if __name__ == "__main__":
    common.run(main)
