#!/usr/bin/env python3
"""Searches among 500 candidates of which 200 are broken on purpose, and writes docs/results/<name>.json and .md.

    .venv/bin/python scripts/fault_injection.py                 # on the GPU, or else on the emulator
    .venv/bin/python scripts/fault_injection.py --small         # a fifth of it
    .venv/bin/python scripts/fault_injection.py --no-disk       # without the part that needs no GPU

Everything goes through the command line: a search with all faults, and in between somebody who locks the leaderboard;
the same candidates without the faults, on the same inputs; and a search whose leaderboard cannot grow any more, which
is gone on with. The exit code is 1 when a candidate has the wrong status or a good one suffered.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from evoengine.model import Config, Evaluation, Status  # noqa: E402
from tests.faults.injection import (  # noqa: E402
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

LOCKED_S: Final = 3.0
ROOM_BYTES: Final = 150_000


def main() -> int:
    arguments = _arguments()
    device = _device(arguments.device)
    on_gpu = device == "cuda"
    counts = full_counts(device)
    counts = {kind: max(1, count // 5) for kind, count in counts.items()} if arguments.small else counts
    plan = Plan(counts, device, "1x4x64x16" if on_gpu else "1x1x16x8", 10.0 if on_gpu else 20.0, 0 if on_gpu else 2)
    with tempfile.TemporaryDirectory() as folder:
        report = _report(Path(folder), plan, with_disk=arguments.disk)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = arguments.name or f"part-3-faults-{_short_name(report)}"
    (arguments.out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    text = _markdown(report)
    (arguments.out / f"{name}.md").write_text(text)
    print(text)
    wrong = [*report["mistakes"], *report["good"]["changed"], *(report["disk"] or {}).get("mistakes", ())]
    print("\n".join(["", *wrong]) if wrong else "")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "emulator"), default="auto")
    parser.add_argument("--small", action="store_true", help="a fifth of all candidates")
    parser.add_argument(
        "--disk", action=argparse.BooleanOptionalAction, default=True, help="also fill a disk, on the emulator"
    )
    parser.add_argument("--name", default="", help="file name without ending; by default it names the device")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    return parser.parse_args()


def _device(asked: str) -> str:
    from evoengine.cli.doctor import diagnose

    return asked if asked != "auto" else diagnose().devices[0]


def _short_name(report: dict[str, Any]) -> str:
    words = str(report["device"]).lower().replace("nvidia", "").split()
    return "emulator" if report["predicted"] else "-".join(words)


# ---- the searches ----------------------------------------------------------------------------------------------------


def _report(folder: Path, plan: Plan, *, with_disk: bool) -> dict[str, Any]:
    cache = folder / "cache"
    load_before = os.getloadavg()[0]
    faulty = _search(folder, "faults", plan, cache, intrude=True)
    gaps_s = _device_gaps(folder / "faults" / "board.db")
    clean_plan = replace(plan, counts={GOOD: plan.counts[GOOD]})
    clean = _search(folder, "clean", clean_plan, cache)
    hang_s = _cost_of_hangs(gaps_s) if plan.device == "cuda" else _extra_seconds(folder, clean_plan, clean, cache)
    said = faulty.said
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "load": (load_before, os.getloadavg()[0]),
        },
        "device": said["device"],
        "predicted": said["predicted"],
        "problem": said["problem"],
        "candidates": plan.budget,
        "faulty": plan.budget - plan.counts[GOOD],
        "wall_s": {"with faults": faulty.wall_s, "without": clean.wall_s},
        "seconds_per_hang": hang_s,
        "signals": dict(faulty.signals),
        "kinds": [_kind_row(plan, kind, faulty) for kind in plan.counts],
        "mistakes": mistakes(plan, faulty) + mistakes(clean_plan, clean),
        "good": _compared(good_rows(clean_plan, faulty), clean.rows),
        "disk": _full_disk(folder, cache) if with_disk else None,
    }


def _search(folder: Path, name: str, plan: Plan, cache: Path, *, intrude: bool = False) -> Run:
    """One search in a folder of its own; says how long it took."""
    own = folder / name
    own.mkdir(exist_ok=True)
    database = own / "board.db"
    lock = partial(hold_lock, database, after_rows=20, seconds=LOCKED_S) if intrude else None
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


def _compared(rows: dict[Config, Evaluation], alone: Any) -> dict[str, Any]:
    """The good candidates among the faulty ones, against the same ones by themselves."""
    changed, ratios = [], []
    for config, row in rows.items():
        other = alone[config]
        if verdict_facts(row) != verdict_facts(other):
            changed.append(f"{config}: {row.status.value} {row.reason}, alone {other.status.value} {other.reason}")
        if row.timing is not None and other.timing is not None:
            ratios.append(row.timing.median_us / other.timing.median_us)
    ratios.sort()
    return {
        "candidates": len(rows),
        "changed": changed,
        "same_time": sum(ratio == 1.0 for ratio in ratios),
        "ratio_median": statistics.median(ratios),
        "ratio_p5": ratios[len(ratios) // 20],
        "ratio_p95": ratios[-1 - len(ratios) // 20],
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
    }


# ---- what a hang costs -----------------------------------------------------------------------------------------------


def _device_gaps(database: Path) -> list[tuple[str, float]]:
    """Of everything that the one device looked at, in order: its status, and the seconds since the one before."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT status, created_at FROM evo_evaluations ORDER BY id").fetchall()
    seen = {Status.OK, Status.PARITY_FAILED, Status.LAUNCH_FAILED, Status.TIMEOUT, Status.CRASHED}
    times = [(status, datetime.fromisoformat(at)) for status, at in rows if Status(status) in seen]
    return [(status, (at - before).total_seconds()) for (_, before), (status, at) in itertools.pairwise(times)]


def _cost_of_hangs(gaps_s: list[tuple[str, float]]) -> float:
    """Until a hang is recorded, and until the next candidate is, beyond what two good ones take; the median."""
    usual_s = statistics.median(gap for status, gap in gaps_s if status == Status.OK.value)
    costs = [
        gap + next_gap - 2 * usual_s
        for (status, gap), (next_status, next_gap) in itertools.pairwise(gaps_s)
        if status == Status.TIMEOUT.value and next_status == Status.OK.value
    ]
    return statistics.median(costs) if costs else float("nan")


def _extra_seconds(folder: Path, clean_plan: Plan, clean: Run, cache: Path) -> float:
    """Wall seconds that each of some hangs adds to the search without faults."""
    hangs = 6
    plan = replace(clean_plan, counts={**clean_plan.counts, "hang": hangs})
    return (_search(folder, "hangs", plan, cache).wall_s - clean.wall_s) / hangs


# ---- a full disk -----------------------------------------------------------------------------------------------------


def _full_disk(folder: Path, cache: Path) -> dict[str, Any]:
    """On the emulator, whatever the device: it is about the leaderboard."""
    own = folder / "disk"
    own.mkdir()
    database, plan = own / "board.db", Plan({GOOD: 30})
    begun = search(own, replace(plan, first=3), database, cache=cache)
    if begun.code != 0:
        raise SystemExit(f"the search 'disk' failed with exit code {begun.code}: {begun.errors}")
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)"
    under = [sys.executable, "-c", f"{limit}; os.execv(sys.argv[2], sys.argv[2:])"]
    cut_short = search(own, plan, database, cache=cache, under=[*under, str(database.stat().st_size + ROOM_BYTES)])
    whole = search(own, plan, database, cache=cache)
    wrong = mistakes(plan, whole)
    if cut_short.code != 2 or not 3 < len(cut_short.rows) < plan.budget:
        wrong.append(f"the full disk was not met: exit code {cut_short.code}, {len(cut_short.rows)} rows")
    wrong += [f"{config}: changed" for config, row in cut_short.rows.items() if whole.rows.get(config) != row]
    return {
        "stored_before": len(cut_short.rows),
        "said": cut_short.errors.strip().replace(str(database), "board.db"),
        "stored_after": len(whole.rows),
        "mistakes": wrong,
    }


# ---- the page --------------------------------------------------------------------------------------------------------


def _markdown(report: dict[str, Any]) -> str:
    machine, good, disk, wall_s = report["machine"], report["good"], report["disk"], report["wall_s"]
    kind = "predicted for" if report["predicted"] else "on"
    times = (
        f"{good['same_time']} of {good['candidates']} have exactly the same predicted time"
        if report["predicted"]
        else f"times with faults over times without: median {good['ratio_median']:.3f}, 5 % to 95 % "
        f"{good['ratio_p5']:.3f} to {good['ratio_p95']:.3f}"
    )
    load = "{:.1f} before, {:.1f} after".format(*machine["load"])
    about = f"{report['when']}, {machine['cores']} cores (load {load}), Python {machine['python']}, "
    about += f"problem {report['problem']}"
    verdicts = f"{len(good['changed'])} of {good['candidates']} have another verdict than without the faults"
    walls = f"{wall_s['with faults']:.1f} s with the faults, {wall_s['without']:.1f} s for the good candidates alone"
    lines = [
        f"# {report['faulty']} faults among {report['candidates']} candidates, {kind} {report['device']}",
        "",
        f"{about}; written by `scripts/fault_injection.py`.",
        "",
        "| fault | candidates | with the right status | status | most frequent reason |",
        "|---|---|---|---|---|",
        *(_kind_line(row) for row in report["kinds"]),
        "",
        f"- Good candidates: {verdicts}; {times}.",
        f"- Wall time: {walls}; {LOCKED_S:g} s of it another program kept the leaderboard locked.",
        f"- A hang costs {report['seconds_per_hang']:.2f} s of wall time.",
    ]
    if disk is not None:
        lines += [
            f"- After {disk['stored_before']} rows a leaderboard that could not grow ended a search: `{disk['said']}`.",
            f"- The same command then did the rest, {disk['stored_after']} rows in all, and changed none.",
        ]
    return "\n".join(lines) + "\n"


def _kind_line(row: dict[str, Any]) -> str:
    reason = row["reason"].replace("|", "\\|")
    shown = reason if len(reason) <= 110 else f"{reason[:110]}…"
    return f"| {row['fault']} | {row['candidates']} | {row['right']} | {row['status']} | {shown} |"


if __name__ == "__main__":
    START_S = time.monotonic()
    CODE = main()
    print(f"{time.monotonic() - START_S:.0f} s in all", file=sys.stderr)
    raise SystemExit(CODE)
