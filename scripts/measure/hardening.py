#!/usr/bin/env python3
"""Disturbs searches from outside and counts what they lose; writes docs/results/hardening-<name>.md.

    python scripts/measure/hardening.py                       # on the emulator: some minutes
    python scripts/measure/hardening.py --kills 5 --low 2     # a short run

Disturbances: kill -9 at random times, an address space that is too small, a full disk, a medium that cannot be written,
and several searches on one file. Each disturbed study is completed by an undisturbed call of the same command and
compared with a study that was never disturbed. The exit code is 1 if a row was lost, wrong or stored twice, a search
stalled, or a traceback was printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import common

from tests.faults.disk import SmallDisk

BUDGET: Final = 12
TIMEOUT_S: Final = 600.0
"""A search that takes longer has stalled: undisturbed ones take seconds."""
LOW_BYTES: Final = 250 * 2**20, 1300 * 2**20
"""Range of the limits of the address space; a search needs about 1,250 MiB."""
FREE_BYTES: Final = 300_000
"""Space on the full disk, enough for some rows."""
COLUMNS: Final = ("runs", "rows lost", "rows wrong", "stored twice", "leases left", "stalls", "tracebacks")

Rows = dict[str, tuple[str, float | None]]
"""Status and time by config key."""


@dataclass
class Findings:
    """Counts of one kind of disturbance."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    """How the disturbed calls ended."""

    @property
    def failed(self) -> bool:
        return any(self.counts[column] for column in COLUMNS if column != "runs")


class Laboratory:
    """Runs searches in a scratch folder with a compile cache of their own."""

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder = folder
        self.budget = budget
        self._environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(common.ROOT), os.environ.get("PYTHONPATH")))),
        }

    def command(self, database: Path, seed: int) -> list[str]:
        search = ["search", "--problem", "tiny", "--device", "emulator", "--strategy", "random", "--no-log", "--quiet"]
        options = ["--budget", str(self.budget), "--seed", str(seed), "--inputs-seed", "7", "--db", str(database)]
        return [sys.executable, "-m", "evoengine", *search, *options]

    def start(
        self, command: list[str], before: Callable[[], object] | None = None, under: list[str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*(under or []), *command],
            env=self._environment,
            preexec_fn=before,  # noqa: PLW1509 - this process has one thread
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str], findings: Findings) -> int:
        """Waits for a process; counts stalls and tracebacks, and how it ended."""
        try:
            _, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
            findings.counts["stalls"] += 1
        findings.counts["tracebacks"] += "Traceback" in errors
        findings.notes[_ending(process.returncode, errors)] += 1
        return process.returncode

    def reference(self, seed: int) -> Rows:
        """Rows of an undisturbed search."""
        database = self.folder / f"reference-{seed}.db"
        if not database.exists():
            self.finish(self.start(self.command(database, seed)), Findings("reference"))
        return rows_of(database)

    def compare(self, database: Path, seed: int, findings: Findings, earlier: Rows) -> None:
        """Completes a disturbed study without a disturbance and counts the differences."""
        findings.counts["runs"] += 1
        self.finish(self.start(self.command(database, seed)), findings)
        expected, found = self.reference(seed), rows_of(database)
        findings.counts["rows lost"] += len((expected.keys() | earlier.keys()) - found.keys())
        findings.counts["rows wrong"] += sum(expected.get(key) != row for key, row in found.items())
        self.count_repeated(database, findings)

    def count_repeated(self, database: Path, findings: Findings) -> None:
        with closing(sqlite3.connect(database)) as file:
            for column in ("config_key", "trial_number"):
                query = f"SELECT count(*) - count(DISTINCT {column}) FROM evo_evaluations GROUP BY study_id"
                findings.counts["stored twice"] += sum(count for (count,) in file.execute(query))
            findings.counts["leases left"] += file.execute("SELECT count(*) FROM evo_claims").fetchone()[0]


def rows_of(database: Path) -> Rows:
    """Rows of a file; empty if there is none.

    A duplicate counts as the kernel that it repeats, since the order of both may differ.
    """
    if not database.exists():
        return {}
    query = "SELECT config_key, status, median_us, duplicate_of FROM evo_evaluations"
    with closing(sqlite3.connect(database)) as file, suppress(sqlite3.OperationalError):
        times = {key: (status, median_us, first) for key, status, median_us, first in file.execute(query)}
        return {key: times.get(first, (status, median_us))[:2] for key, (status, median_us, first) in times.items()}
    return {}


def _ending(code: int, errors: str) -> str:
    """One of few descriptions of how a call ended."""
    if code < 0:
        return f"signal {-code}"
    line = errors.strip().splitlines()[-1] if code and errors.strip() else ""
    signs = ("out of memory", "no more processes", "a search needs", "disk is full", "cannot be written", "for writing")
    sign = next((f", '{sign}'" for sign in signs if sign in line), "")
    return f"exit code {code}{sign}"


def kills(lab: Laboratory, number: int) -> Findings:
    """Kills searches at random times, again and again on the same file until one completes."""
    findings, chance = Findings("kill -9"), random.Random(1)
    seed, done = 0, 0
    while done < number:
        seed += 1
        lab.reference(seed)
        database, earlier, patience_s = lab.folder / f"kill-{seed}.db", Rows(), 4.0
        while done < number:
            process = lab.start(lab.command(database, seed))
            try:
                process.communicate(timeout=chance.uniform(0.2, patience_s))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            done += 1
            now = rows_of(database)
            findings.counts["rows lost"] += len(earlier.keys() - now.keys())
            patience_s += 0.0 if len(now) > len(earlier) else 1.0
            earlier = now
        lab.compare(database, seed, findings, earlier)
    findings.counts["runs"] = done
    return findings


def low_memory(lab: Laboratory, number: int) -> Findings:
    """Limits the address space of searches."""
    findings = Findings("low memory")
    low, high = LOW_BYTES
    for index in range(number):
        limit = low + (high - low) * index // max(1, number - 1)
        database = lab.folder / f"low-{index}.db"

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        lab.finish(lab.start(lab.command(database, 1), limited), findings)
        lab.compare(database, 1, findings, rows_of(database))
    return findings


def full_disk(lab: Laboratory) -> Findings:
    """Fills the disk of the leaderboard."""
    findings = Findings("full disk")
    for mount in (True, False):
        folder = lab.folder / f"disk-{mount}"
        folder.mkdir()
        with SmallDisk(folder, mount=mount) as disk:
            if disk.mounted != mount:
                continue
            database = folder / "board.db"
            database.touch()
            lab.finish(lab.start(lab.command(database, 1), under=disk.shrink(FREE_BYTES)), findings)
            earlier = rows_of(database)
            disk.grow()
            lab.compare(database, 1, findings, earlier)
    return findings


def read_only_medium(lab: Laboratory) -> Findings:
    """Reads and searches a leaderboard on a medium that cannot be written."""
    findings = Findings("read-only medium")
    reference, folder = lab.reference(1), lab.folder / "medium"
    folder.mkdir()
    source = lab.folder / "reference-1.db"
    with SmallDisk(folder) as disk:
        if not disk.mounted:
            return findings
        database = folder / "board.db"
        database.write_bytes(source.read_bytes())
        if subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=False).returncode:
            return findings
        out = lab.folder / "out"
        export, report = ["export", "--best", "-f", "-o", f"{out}.cu"], ["report", "-f", "-o", f"{out}.html"]
        for words in (["leaderboard"], export, report):
            call = [sys.executable, "-m", "evoengine", *words, "--db", str(database)]
            findings.counts["stalls"] += lab.finish(lab.start(call), findings) != 0
        findings.counts["rows wrong"] += lab.finish(lab.start(lab.command(database, 2)), findings) != 2
        findings.counts["runs"] += 4
        with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as file:
            kept = file.execute("SELECT count(*) FROM evo_evaluations").fetchone()[0]
        findings.counts["rows lost"] += len(reference) - kept
    return findings


def concurrent(lab: Laboratory, number: int) -> Findings:
    """Runs several searches on one study; which configs they evaluate depends on who is faster."""
    findings = Findings(f"{number} searches on one file")
    database = lab.folder / f"concurrent-{number}.db"
    processes = [lab.start(lab.command(database, 1)) for _ in range(number)]
    for process in processes:
        findings.counts["rows lost"] += lab.finish(process, findings) != 0
        findings.counts["runs"] += 1
    expected, found = lab.reference(1), rows_of(database)
    findings.counts["rows wrong"] += sum(expected.get(key, row) != row for key, row in found.items())
    findings.counts["rows lost"] += max(0, lab.budget - len(found))
    lab.count_repeated(database, findings)
    return findings


def page(results: list[Findings], words: list[str], minutes: float, lab: Laboratory) -> str:
    """The Markdown page."""
    lines = [
        "# Disturbed searches on the emulator",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, 2-core machine without a GPU, {minutes:.0f} minutes, with",
        f"`{' '.join(['python', 'scripts/measure/hardening.py', *words])}`.",
        "",
        f"Each search has {lab.budget} candidates of the problem `tiny`. Every disturbed study is completed by the",
        "same command without a disturbance, and compared row by row with a study that was never disturbed.",
        "",
        f"| disturbance | {' | '.join(COLUMNS)} |",
        f"|---|{'---|' * len(COLUMNS)}",
    ]
    lines += [f"| {one.name} | {' | '.join(str(one.counts[column]) for column in COLUMNS)} |" for one in results]
    lines += ["", "How the calls ended, the completing ones included:", ""]
    lines += [
        f"- {one.name}: {', '.join(f'{count} x {how}' for how, count in sorted(one.notes.items()))}" for one in results
    ]
    return "\n".join(lines)


def run(lab: Laboratory, arguments: argparse.Namespace) -> Iterator[Findings]:
    yield kills(lab, arguments.kills)
    yield low_memory(lab, arguments.low)
    yield full_disk(lab)
    yield read_only_medium(lab)
    for number in (2, 4):
        yield concurrent(lab, number)


def main() -> int:
    options = common.parser(__doc__)
    options.add_argument("--kills", type=int, default=50, help="Number of kills.")
    options.add_argument("--low", type=int, default=10, help="Number of searches with little memory.")
    options.add_argument("--budget", type=int, default=BUDGET, help="Candidates per search.")
    options.add_argument("--out", type=Path, help="Path of the page, without a suffix.")
    arguments = options.parse_args()
    begin_s = time.monotonic()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        lab = Laboratory(Path(scratch), arguments.budget)
        for findings in run(lab, arguments):
            results.append(findings)
            print(findings.name, json.dumps(findings.counts), json.dumps(findings.notes), file=sys.stderr, flush=True)
        text = page(results, common.without_folders(sys.argv[1:]), (time.monotonic() - begin_s) / 60, lab)
    common.write_table(arguments.out and arguments.out.with_suffix(".md"), text)
    return 1 if any(findings.failed for findings in results) else 0


if __name__ == "__main__":
    common.run(main)
