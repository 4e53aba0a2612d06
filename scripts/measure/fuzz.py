#!/usr/bin/env python3
"""Gives the command line and the Python API thousands of bad inputs and counts what is not answered as it must be.

    python scripts/measure/fuzz.py --count 4000 --seed 1                    # some minutes
    python scripts/measure/fuzz.py --count 4000 --seed 1 --out docs/results/fuzz-emulator

The inputs are those of `tests/fuzz`, with another seed and in larger numbers. A refusal must be one printable line of
less than 300 characters with exit code 1 or 2; no call may end with an internal error, hang, change a file that it
reads, lose a row, or leave a file behind. The exit code is 1 if an input was not answered like this.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import common

from tests.fuzz.campaign import KINDS, prepare, run_cases
from tests.fuzz.command_line import places
from tests.fuzz.runner import Finding

SHARES: Final = {
    "options": 0.3,
    "combinations": 0.15,
    "files": 0.15,
    "data": 0.05,
    "databases": 0.15,
    "environment": 0.05,
    "Python": 0.15,
}
"""Share of each kind of bad input; the odd calls are a fixed list."""
WHAT: Final = {
    "options": "one bad value for each option and argument of each verb, and each flag",
    "calls": "unknown verbs, missing and contradicting options, outputs that cannot be written",
    "combinations": "two to four options with valid and bad values",
    "files": "damaged landscapes, caches, rows, lockfiles, spaces, workloads, settings, self-test records",
    "data": "a data folder of the user's with a damaged search space or template",
    "databases": "leaderboards with damaged bytes, pages, schemas and values",
    "environment": "environment variables with bad values",
    "Python": "arguments of `attention`, `explain`, `tune`, `search`, `Problem`, `SearchOptions`, `Emulator`",
}


def counts(total: int) -> dict[str, int]:
    """Number of cases of each kind; of ``options``, of values for each option."""
    found = {kind: max(1, round(total * SHARES.get(kind, 0.0))) for kind in KINDS}
    options = sum(not place.flag for place in places())
    return found | {"options": max(1, found["options"] // options)}


def page(results: dict[str, tuple[int, list[Finding]]], words: list[str], minutes: float) -> str:
    """The Markdown page."""
    total = sum(count for count, _ in results.values())
    lines = [
        "# Bad inputs",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, 2-core machine without a GPU, {minutes:.0f} minutes, with",
        f"`{' '.join(['python', 'scripts/measure/fuzz.py', *words])}`: {total:,} inputs.",
        "",
        "An input is answered as it must be if it is harmless, or refused in one printable line of less than 300",
        "characters with exit code 1 or 2, without an internal error, a traceback, a lost row or a file left behind.",
        "`tests/fuzz` runs a smaller number of the same kinds in every test run.",
        "",
        "| kind | what is bad | inputs | answered otherwise |",
        "|---|---|---|---|",
    ]
    lines += [f"| {kind} | {WHAT[kind]} | {count:,} | {len(found)} |" for kind, (count, found) in results.items()]
    return "\n".join(lines)


def main() -> int:
    options = common.parser(__doc__)
    options.add_argument("--count", type=int, default=4000, help="Approximate number of inputs.")
    options.add_argument("--seed", type=int, default=1, help="Seed of the choice.")
    options.add_argument("--only", choices=KINDS, help="Only this kind of input.")
    options.add_argument("--out", type=Path, help="Path of the page, without a suffix.")
    arguments: argparse.Namespace = options.parse_args()
    begin_s = time.monotonic()
    results: dict[str, tuple[int, list[Finding]]] = {}
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        samples, cache = Path(scratch) / "samples", Path(scratch) / "cache"
        samples.mkdir()
        cache.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(cache)
        prepare(samples, cache)
        for kind, count in counts(arguments.count).items():
            if arguments.only in (None, kind):
                number, findings = results[kind] = run_cases(kind, arguments.seed, count, samples, cache)
                for line in (f"{kind}: {number} inputs, {len(findings)} findings", *(f"  {one}" for one in findings)):
                    print(line, file=sys.stderr, flush=True)
    text = page(results, common.without_folders(sys.argv[1:]), (time.monotonic() - begin_s) / 60)
    common.write_table(arguments.out and arguments.out.with_suffix(".md"), text)
    return 1 if any(found for _, found in results.values()) else 0


if __name__ == "__main__":
    common.run(main)
