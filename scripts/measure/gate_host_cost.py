#!/usr/bin/env python3
"""Measures what the parity gate costs the host by problem; needs no GPU.

    python scripts/measure/gate_host_cost.py                    # all problems of models.toml
    python scripts/measure/gate_host_cost.py vit-b-197,gpt2-1024

For each problem: rows and elements of the output that are compared, CPU milliseconds of judging the problem's own case
and the small ones, CPU seconds of building the pool of cases, and the pool's size as it is sent to a device worker. The
rounded reference stands for the kernel's output.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a search
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import pickle
import time
from collections.abc import Callable

import common
import models
import numpy as np

from evoengine.errors import UsageError
from evoengine.kernel.call import AttentionOutput
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.model import Problem
from evoengine.parity.compare import judge
from evoengine.parity.float_bits import to_bits
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import build_pool

_SEED = 1
_TURNS = 5


def output_of(case: ParityCase) -> AttentionOutput:
    """An output that passes: zeros, and the reference in the compared rows."""
    problem, sample = case.inputs.problem, case.sample
    o = np.zeros((problem.memory_batch, problem.heads, problem.rows_q, problem.head_dim), np.uint16)
    o[sample.batch, sample.head, sample.row] = to_bits(case.reference, problem.dtype)
    return AttentionOutput(o)


def least_ms(work: Callable[[], object]) -> float:
    """Least CPU milliseconds of several calls; the first warms up."""
    found = []
    for _ in range(1 + _TURNS):
        start = time.process_time()
        work()
        found.append((time.process_time() - start) * 1e3)
    return min(found[1:])


def line(name: str, problem: Problem) -> str:
    """One row of the table."""
    start = time.process_time()
    pool = build_pool(problem, _SEED)
    pool_s = time.process_time() - start
    draw = pool.draw(name)
    *small, own = [(case, output_of(case)) for case in draw.gate]
    small_ms = sum(least_ms(lambda case=case, output=output: judge(case, output)) for case, output in small)
    own_ms = least_ms(lambda: judge(*own))
    rows, size_mb = len(own[0].sample.row), len(pickle.dumps(pool, pickle.HIGHEST_PROTOCOL)) / 1e6
    cells = (name, problem.key, f"{rows:,}", f"{rows * problem.head_dim:,}", f"{own_ms:.1f}", f"{small_ms:.1f}")
    return f"| {' | '.join(cells)} | {pool_s:.1f} | {size_mb:.0f} |"


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("names", nargs="?", type=common.comma_list, help="Names of problems, with commas between.")
    return parser.parse_args()


def main() -> int:
    options = parse()
    keep_freed_memory()
    entries = {entry.name: entry for entry in models.read_suite(models.SUITE)}
    for name in options.names or ():
        if name not in entries:
            raise UsageError(f"unknown problem '{name}': choose from {', '.join(entries)}")
    print("| name | problem | rows | elements | own case, ms | small cases, ms | pool, s | pool, MB |")
    print("|---|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for name in options.names or tuple(entries):
        print(line(name, entries[name].build()), flush=True)
    return 0


if __name__ == "__main__":
    common.run(main)
