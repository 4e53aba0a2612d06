#!/usr/bin/env python3
"""Counts false drops: candidates that racing stops early although they are close to the best.

    python scripts/measure/racing_drops.py simulate > table.md
    evoengine search --budget 500 --db drops.db && python scripts/measure/racing_drops.py recheck --db drops.db

``simulate`` needs no GPU. It prints how often racing drops a candidate, by its slowdown, under several noise models.
At most 1 % of the candidates within the margin should be dropped. Dependent samples use up a part of the margin.

``recheck`` needs the GPU of a finished search. It rebuilds every dropped kernel and times it with all samples,
interleaved with the champion. A drop is false if the kernel is within 3 % of the champion.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import common

from evoengine.bench.gpu_monitor import open_monitor
from evoengine.bench.racing import RaceRule
from evoengine.bench.sampling import take_samples
from evoengine.bench.timer import plan_for, spin_up
from evoengine.errors import UsageError
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.records import Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Status
from evoengine.parity.inputs.profiles import make_inputs
from evoengine.search.candidate.build import Builder
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.space.loader import find_space
from tests.bench.noise import MODELS, ROUNDS, drops

SLOWER: Final = (0.0, 0.03, 0.05, 0.08, 0.10, 0.15, 0.20, 0.30, 0.50, 1.00)


def simulate(arguments: argparse.Namespace) -> None:
    """Prints a table of drop rates by noise model and slowdown."""
    rule = RaceRule()
    print(f"Share of {arguments.runs} measurements that were dropped (margin {rule.margin:.0%}, {rule.confidence:.0%}")
    print(f"confidence, at most {ROUNDS} samples), and below it the mean number of samples of all of them.\n")
    print("| noise | " + " | ".join(f"+{slower:.0%}" for slower in SLOWER) + " |")
    print("|---" * (1 + len(SLOWER)) + "|")
    for name, model in MODELS.items():
        cells = [drops(model, slower, arguments.runs, arguments.seed) for slower in SLOWER]
        shares = [f"{sum(map(bool, cell)) / len(cell):.2%}" for cell in cells]
        means = [f"{statistics.fmean(count or ROUNDS for count in cell):.1f}" for cell in cells]
        texts = [f"{share}<br>{mean}" for share, mean in zip(shares, means, strict=True)]
        print(f"| {name}: {model.doc} | " + " | ".join(texts) + " |", flush=True)


def recheck(arguments: argparse.Namespace) -> None:
    """Prints how close the dropped kernels of the latest study are to its champion.

    Raises:
        UsageError: The study has no champion or no dropped kernel, or a kernel cannot be rebuilt.
    """
    with Leaderboard(database_url(arguments.db), create=False) as board:
        study = board.studies()[-1]
        dropped = board.rows(RowFilter(study_id=study.id, statuses=(Status.PRUNED,)))[: arguments.most]
        champion = board.champion(study.scope)
    if champion is None or not dropped:
        raise UsageError(f"{arguments.db}: the latest study has no champion or no dropped candidate; search longer")
    with closing(open_device(DeviceSpec("cuda", arch=study.key.device.arch))) as device:
        problem = study.key.problem
        target = device.target.compiled_for(device.info.arch)
        builder = common.builder(problem, target, [find_space(name) for name in study.key.family.split(",")])
        found = list(_measure(device, builder, champion, dropped, make_inputs(problem, "normal", 0)))
    _report(found, champion)


def _kernel(builder: Builder, row: Row) -> Kernel:
    kernel = builder.build(row.full_config).kernel
    if kernel is None or kernel.binary.code_hash != row.code_hash:
        raise UsageError(f"row {row.id}: rebuilding does not reproduce its machine code; use the version that made it")
    return kernel


def _measure(
    device: Any, builder: Builder, champion: Row, dropped: list[Row], inputs: Any
) -> Iterator[tuple[Row, float]]:
    """Yields each row with its time relative to the champion."""
    plan = plan_for(inputs.problem, racing=False)
    monitor = open_monitor(device.info.pci_bus_id)
    best = device.load(_kernel(builder, champion)).stopwatch(inputs, plan.stopwatch)
    spin_up(best, plan.spin_up_s)
    for row in dropped:
        loaded = device.load(_kernel(builder, row))
        with closing(loaded), closing(loaded.stopwatch(inputs, plan.stopwatch)) as watch:
            own, theirs = take_samples([watch, best], plan.samples, plan.warmup, monitor).columns
        yield row, statistics.median(own) / statistics.median(theirs)


def _report(found: list[tuple[Row, float]], champion: Row) -> None:
    ratios = sorted(ratio for _, ratio in found)
    print(f"{len(found)} dropped kernels, timed with all samples beside the champion (row {champion.id})")
    for share in (0.0, 0.03, 0.05, RaceRule().margin, 0.2, 0.5):
        count = sum(ratio <= 1 + share for ratio in ratios)
        print(f"within {share:>4.0%} of the champion: {count} ({count / len(found):.2%})")
    middle = statistics.median(ratios)
    print(f"fastest {ratios[0]:.3f}, median {middle:.3f}, slowest {ratios[-1]:.3f} times the champion")
    for row, ratio in sorted(found, key=lambda entry: entry[1])[:5]:
        print(f"  row {row.id}: {ratio:.3f}; dropped as {row.reason}")
    print(f"false drops (within 3 %): {sum(ratio <= 1.03 for ratio in ratios)}")


def main() -> int:
    parser = common.parser(__doc__)
    modes = parser.add_subparsers(required=True)
    simulated = modes.add_parser("simulate", help="Simulate noise; needs no GPU.")
    simulated.add_argument("--runs", type=int, default=4000, help="Measurements per cell.")
    simulated.add_argument("--seed", type=int, default=0, help="Random seed.")
    simulated.set_defaults(act=simulate)
    rechecked = modes.add_parser("recheck", help="Time the dropped candidates of a search on a GPU.")
    rechecked.add_argument("--db", default="leaderboard.db", help="Leaderboard file or URL.")
    rechecked.add_argument("--most", type=int, default=1000, help="Maximum number of dropped kernels to measure.")
    rechecked.set_defaults(act=recheck)
    arguments = parser.parse_args()
    arguments.act(arguments)
    return 0


if __name__ == "__main__":
    common.run(main)
