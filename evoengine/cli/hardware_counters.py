"""``profile --ncu``: what Nsight Compute counts for one kernel on the GPU at hand."""

from __future__ import annotations

from rich.table import Table

from evoengine.cli.console import make_console, print_json, print_table
from evoengine.cli.gpu import find_gpu
from evoengine.device.hardware_counters import COUNTERS
from evoengine.device.launcher import LaunchJob
from evoengine.device.ncu import KernelCounters, profile_job, require_ncu
from evoengine.errors import MissingDependencyError
from evoengine.kernel.artifact import Kernel
from evoengine.model import Problem
from evoengine.parity.inputs import make_inputs


def show_hardware_counters(kernel: Kernel, problem: Problem, *, json_output: bool) -> None:
    """Runs the kernel once under Nsight Compute and prints its counters.

    Raises:
        MissingDependencyError: there is no GPU, or no Nsight Compute.
        EvoEngineError: ncu failed.
    """
    if find_gpu() is None:
        raise MissingDependencyError("--ncu needs an NVIDIA GPU, and nvidia-smi shows none; leave it out")
    ncu = require_ncu()
    launches = profile_job(ncu, LaunchJob.of(kernel, make_inputs(problem, "normal", 0)))
    if json_output:
        print_json(
            [
                {"kernel": one.kernel, "counters": in_words(one), "metrics": one.values, "units": one.units}
                for one in launches
            ]
        )
        return
    console = make_console()
    for one in launches:
        console.print(one.kernel, style="bold", markup=False)
        table = Table(box=None, pad_edge=False)
        table.add_column("counter", no_wrap=True)
        table.add_column("value", justify="right", no_wrap=True)
        table.add_column("unit", no_wrap=True)
        for name, value in in_words(one).items():
            table.add_row(name, f"{value:,.0f}", "")
        said = {metric for counter in COUNTERS for metric in counter.metrics}
        for name, value in one.values.items():
            if name not in said:
                table.add_row(name, f"{value:,.6g}" if value % 1 else f"{value:,.0f}", one.units[name])
        print_table(console, table)


def in_words(launch: KernelCounters) -> dict[str, float]:
    """The counts of one launch by their plain names; those that the GPU does not have are missing."""
    found = {counter.name: counter.value(launch.values) for counter in COUNTERS}
    return {name: value for name, value in found.items() if value is not None}
