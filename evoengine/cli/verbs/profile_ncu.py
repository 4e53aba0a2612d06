"""``profile --ncu``: counters of Nsight Compute for one kernel, stored with the row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.row_lines import origin_of
from evoengine.device.tools.bottleneck import diagnose
from evoengine.device.tools.hardware_counters import COUNTERS
from evoengine.documents.escaping import printable
from evoengine.engine.devices.gpus import find_gpu
from evoengine.errors import MissingDependencyError
from evoengine.leaderboard.records import Record, utc_now
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import HardwareProfile, KernelCounters, Problem

if TYPE_CHECKING:
    from evoengine.kernel.records import Kernel


def _count_on_gpu(kernel: Kernel, problem: Problem) -> HardwareProfile:
    """Runs the kernel once under Nsight Compute.

    Raises:
        MissingDependencyError: There is no GPU or no Nsight Compute.
        EvoEngineError: Nsight Compute failed.
    """
    from evoengine.device.tools.launcher import LaunchJob  # lazily: stored counters are shown without it
    from evoengine.device.tools.ncu import profile_job, require_ncu, version_of
    from evoengine.parity.inputs.profiles import make_inputs

    gpu = find_gpu()
    if gpu is None:
        raise MissingDependencyError(
            "no counters are stored for this row, and --ncu needs a GPU to count them: nvidia-smi shows none"
        )
    ncu = require_ncu()
    launches = profile_job(ncu, LaunchJob.of(kernel, make_inputs(problem, "normal", 0)))
    return HardwareProfile(launches, gpu.name, version_of(ncu), kernel.binary.code_hash, utc_now())


def show_hardware_counters(
    board: Leaderboard, record: Record, build: Callable[[], Kernel], *, again: bool, json_output: bool
) -> None:
    """Prints the hardware counters of a row, and counts and stores them first if it has none.

    Args:
        board: Leaderboard of the row.
        record: Row.
        build: Builds the row's kernel.
        again: Whether to count again if counters are stored; the old ones stay in the file.
        json_output: Whether to print an object instead of tables.

    Raises:
        MissingDependencyError: There is no GPU or no Nsight Compute.
        EvoEngineError: Nsight Compute failed.
    """
    profile = record.profile
    if profile is None or again:
        profile = _count_on_gpu(build(), record.study.key.problem)
        board.add_profile(record.row.id, profile)
    if json_output:
        print_json({"id": record.row.id, **profile_document(profile)})
        return
    console = make_console()
    console.print(f"row {record.row.id}: {origin_of(profile)}", markup=False)
    for launch in profile.launches:
        _print(console, launch)


def profile_document(profile: HardwareProfile) -> dict[str, Any]:
    """A profile as a JSON object, with its diagnosis."""
    return {
        "gpu": profile.gpu,
        "tool": profile.tool,
        "code_hash": profile.code_hash,
        "counted_at": profile.counted_at.isoformat(timespec="seconds") + "Z",
        "launches": [_launch_document(launch) for launch in profile.launches],
    }


def _launch_document(launch: KernelCounters) -> dict[str, Any]:
    diagnosis = diagnose(launch)
    return {
        "kernel": launch.kernel,
        **dataclasses.asdict(diagnosis),
        "findings": list(diagnosis.sentences),
        "counters": _named_counters(launch),
        "metrics": dict(launch.values),
        "units": dict(launch.units),
    }


def _print(console: Console, launch: KernelCounters) -> None:
    console.print(f"\n{launch.kernel}", style="bold", markup=False)
    for sentence in diagnose(launch).sentences:
        console.print(sentence, markup=False)
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("counter", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for name, value in _named_counters(launch).items():
        table.add_row(name, f"{value:,.0f}", "")
    printed = {metric for counter in COUNTERS for metric in counter.metrics}
    for name, value in launch.values.items():
        if name not in printed:
            table.add_row(
                printable(name),
                f"{value:,.6g}" if value % 1 else f"{value:,.0f}",
                printable(launch.units.get(name, "")),
            )
    print_table(console, table)


def _named_counters(launch: KernelCounters) -> dict[str, float]:
    """The counters of one launch by name; counters that the GPU lacks are left out."""
    found = {counter.name: counter.value(launch.values) for counter in COUNTERS}
    return {name: value for name, value in found.items() if value is not None}
