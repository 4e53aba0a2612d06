#!/usr/bin/env python3
"""Measures in full, on a GPU, what racing dropped in a search, and counts the false drops.

    python -m evoengine search --budget 500 --db drops.db
    .venv/bin/python scripts/measure/recheck_drops.py --db drops.db

Every dropped kernel is built again and timed with all samples, in turns with the champion in one process. A drop was
false when the kernel is within 3 % of the champion after all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evoengine.bench.racing import RaceRule
from evoengine.bench.sampling import take_samples
from evoengine.bench.telemetry import open_monitor
from evoengine.bench.timer import plan_for, spin_up
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Status
from evoengine.parity.inputs.profiles import make_inputs
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--db", default="leaderboard.db")
    parser.add_argument("--most", type=int, default=1000, help="dropped kernels to measure [all]")
    arguments = parser.parse_args()
    with Leaderboard(database_url(arguments.db), create=False) as board:
        study = board.studies()[-1]
        dropped = board.rows(RowFilter(study_id=study.id, statuses=(Status.PRUNED,)))[: arguments.most]
        champion = board.champion(study.scope)
    if champion is None or not dropped:
        sys.exit("this leaderboard has no champion, or nothing was dropped")
    with closing(open_device(DeviceSpec("cuda", arch=study.key.device.arch))) as device:
        problem = study.key.problem
        target = device.target.compiled_for(device.info.arch)
        spaces = tuple(find_space(name) for name in study.key.family.split(","))
        folders = (data_dir("templates"), default_cache_dir())
        builder = Builder(BuildSetup((problem,), target, device.info.arch, spaces, *folders))
        found = list(_measure(device, builder, champion, dropped, make_inputs(problem, "normal", 0)))
    _report(found, champion)


def _kernel(builder: Builder, row: Row) -> Kernel:
    kernel = builder.build(Config.of(row.family, row.config)).kernel
    if kernel is None or kernel.binary.code_hash != row.code_hash:
        sys.exit(f"row {row.id} cannot be built again to the same machine code")
    return kernel


def _measure(
    device: Any, builder: Builder, champion: Row, dropped: list[Row], inputs: Any
) -> Iterator[tuple[Row, float]]:
    """Each row with its time over the champion's."""
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
    margin = RaceRule().margin
    print(f"{len(found)} dropped kernels measured in full beside the champion, row {champion.id}")
    for share in (0.0, 0.03, 0.05, margin, 0.2, 0.5):
        count = sum(ratio <= 1 + share for ratio in ratios)
        print(f"within {share:>4.0%} of the champion: {count} ({count / len(found):.2%})")
    print(
        f"fastest {ratios[0]:.3f}, median {statistics.median(ratios):.3f}, slowest {ratios[-1]:.3f} times the champion"
    )
    closest = sorted(found, key=lambda entry: entry[1])[:5]
    for row, ratio in closest:
        print(f"  row {row.id}: {ratio:.3f}; dropped as {row.reason}")
    print(f"false drops (within 3 %): {sum(ratio <= 1.03 for ratio in ratios)}")


if __name__ == "__main__":
    main()
