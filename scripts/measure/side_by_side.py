#!/usr/bin/env python3
"""Times the fastest kernels of several leaderboards in turns in one process, on the same inputs (GPU).

    python scripts/measure/side_by_side.py set.db search.db --top 20
    python scripts/measure/side_by_side.py set.db search.db --json

Stored times of two leaderboards were measured in two processes, which can disagree by several percent about the same
kernel, and the fastest of many stored times is partly the luckiest. All leaderboards have measured rows of one problem.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import common

from evoengine.bench.timer import plan_for, sample_interleaved, spin_up
from evoengine.device.cuda.device import CudaDevice
from evoengine.engine.rows.kernels import build_for, target_of
from evoengine.errors import UsageError
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.records import Record, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.parity.inputs.cases import problem_case

_SEED: Final = 0
_WARMUP: Final = 3
_SPIN_UP_S: Final = 0.3


@dataclass(frozen=True)
class Finalist:
    """A stored kernel and its times in microseconds."""

    leaderboard: str
    """Path of the file, as it was given."""
    row: int
    family: str
    stored_us: float
    us: float
    """Median in this process."""


def main() -> int:
    arguments = _arguments()
    records = {path: fastest(path, arguments.top) for path in arguments.leaderboards}
    problems = {record.study.key.problem for found in records.values() for record in found}
    if len(problems) != 1:
        raise UsageError(f"the leaderboards have measured rows of {len(problems)} problems: give those of one problem")
    entries = [(path, record) for path, found in records.items() for record in found]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:  # before this process opens the GPU
        kernels = [*processes.map(build, [record for _, record in entries])]
    device = CudaDevice()
    timed = time_in_turns(device, entries, kernels, arguments.samples)
    if arguments.json:
        print(json.dumps({"device": device.info.name, "finalists": [asdict(one) for one in timed]}))
    else:
        print(table(timed))
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("leaderboards", nargs="+", type=Path, help="Leaderboards with measured rows of one problem.")
    parser.add_argument("--top", type=int, default=20, help="Kernels of each leaderboard.")
    parser.add_argument("--samples", type=int, default=40, help="Samples of each kernel.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser.parse_args()


def fastest(path: Path, count: int) -> list[Record]:
    """Reads the fastest measured rows of a leaderboard; rows of the same machine code count once."""
    with Leaderboard(f"sqlite:///{path}", create=False) as board:
        rows = [row for row in board.rows(RowFilter(predicted=False)) if row.median_us]
        rows.sort(key=lambda row: (row.median_us or 0.0, row.id))
        distinct = {row.code_hash or str(row.id): row.id for row in reversed(rows)}
        ids = [row.id for row in rows if row.id in distinct.values()]
        return [board.get(row_id) for row_id in ids[:count]]


def build(record: Record) -> Kernel:
    """Compiles the kernel of a row."""
    return build_for(record, record.study.key.problem, target_of(record), record.row.arch)


def time_in_turns(
    device: CudaDevice, entries: Sequence[tuple[Path, Record]], kernels: Sequence[Kernel], samples: int
) -> list[Finalist]:
    """Times the kernels of all records on the same inputs, fastest first."""
    problem = entries[0][1].study.key.problem
    case, options = problem_case(problem, _SEED), plan_for(problem).stopwatch
    with ExitStack() as stack:
        watches = []
        for kernel in kernels:
            loaded = stack.enter_context(closing(device.load(kernel)))
            watches.append(stack.enter_context(closing(loaded.stopwatch(case.inputs, options))))
        spin_up(watches[0], _SPIN_UP_S, *watches[1:])
        columns = sample_interleaved(watches, samples, _WARMUP)
    found = [
        Finalist(str(path), record.row.id, record.row.family, record.row.median_us or 0.0, median(column))
        for (path, record), column in zip(entries, columns, strict=True)
    ]
    return sorted(found, key=lambda one: one.us)


def table(found: Sequence[Finalist]) -> str:
    """The times as a table of Markdown."""
    lines = ["| leaderboard | row | family | stored, µs | in turns, µs |", "|:--|--:|:--|--:|--:|"]
    lines += [f"| {one.leaderboard} | {one.row} | {one.family} | {one.stored_us:.2f} | {one.us:.2f} |" for one in found]
    return "\n".join(lines)


if __name__ == "__main__":
    common.run(main)
