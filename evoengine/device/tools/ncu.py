"""Runs Nsight Compute on one call of one kernel and reads the hardware counters by name.

``ncu --csv --page raw`` prints lines that begin with ``==``, then a table: names of columns, their units, and one line
per kernel launch. Numbers may contain commas; ``n/a`` and errors stand for counters that a GPU lacks.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from evoengine.device.tools.bottleneck import DIAGNOSIS_METRICS
from evoengine.device.tools.hardware_counters import COUNTERS
from evoengine.device.tools.launcher import COMMAND, LaunchJob, launcher_environment
from evoengine.device.tools.programs import find_program
from evoengine.device.workers.wire import encode
from evoengine.errors import EvoEngineError, MissingDependencyError
from evoengine.model import KernelCounters
from evoengine.system.temporary import TemporaryFolder

INSTALL_NCU: Final = "sudo apt-get install nsight-compute  (or the CUDA toolkit, which has ncu in its bin folder)"
LIMIT_S: Final = 180.0
METRICS: Final = (
    "gpu__time_duration.sum",
    *DIAGNOSIS_METRICS,
    "dram__bytes.sum",
    "lts__t_bytes.sum",
    "smsp__inst_executed_pipe_fma.sum",
    "smsp__inst_executed_pipe_alu.sum",
    "smsp__inst_executed_pipe_xu.sum",
    "smsp__inst_executed_pipe_lsu.sum",
    *dict.fromkeys(metric for counter in COUNTERS for metric in counter.metrics),
)
"""Metrics of ``profile --ncu``; a GPU that lacks some reports the others."""
_PREFIX: Final = re.compile(r"^==\w+==\s*")
_VERSION: Final = re.compile(r"^Version (\S+)", re.MULTILINE)
_FIRST_COLUMN: Final = "ID"
_KERNEL_COLUMN: Final = "Kernel Name"


def find_ncu(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Finds Nsight Compute's command line on PATH or in CUDA's folder; None if it is not installed."""
    return find_program("ncu", environment)


def require_ncu() -> Path:
    """Finds Nsight Compute.

    Raises:
        MissingDependencyError: It is not installed; the message says how to install it.
    """
    found = find_ncu()
    if found is None:
        raise MissingDependencyError(f"Nsight Compute (ncu) is not installed: {INSTALL_NCU}")
    return found


def version_of(ncu: Path) -> str:
    """Returns ``Nsight Compute 2025.3.1.0``, or the name alone if the version is unknown."""
    try:
        done = subprocess.run([str(ncu), "--version"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return "Nsight Compute"
    found = _VERSION.search(done.stdout)
    return f"Nsight Compute {found[1]}" if found else "Nsight Compute"


def profile_job(ncu: Path, job: LaunchJob, metrics: Sequence[str] = METRICS) -> tuple[KernelCounters, ...]:
    """Returns the counters of every launch of one call, in order.

    Clocks are not changed: counts do not depend on them, and changing them may need administrator rights.

    Raises:
        EvoEngineError: ncu failed, for example because the driver restricts counters to administrators.
    """
    with TemporaryFolder() as folder:
        file = folder / "job"
        file.write_bytes(encode(job))
        try:
            done = subprocess.run(
                ncu_command(ncu, metrics, COMMAND),
                input=f"{file}\n",
                env=launcher_environment(),
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EvoEngineError(f"{ncu} failed: {' '.join(str(error).split())[:200]}") from error
    found = parse_raw_page(done.stdout)
    if not found:
        raise EvoEngineError(f"{ncu} measured nothing: {trouble_in(done.stdout + done.stderr)}")
    return tuple(only(metrics, launch) for launch in found)


def only(metrics: Sequence[str], launch: KernelCounters) -> KernelCounters:
    """Keeps the requested counters; for some metrics ncu also reports average, minimum and maximum."""
    kept = {metric: launch.values[metric] for metric in metrics if metric in launch.values}
    return KernelCounters(launch.kernel, kept, {metric: launch.units[metric] for metric in kept})


def ncu_command(ncu: Path, metrics: Sequence[str], program: Sequence[str]) -> list[str]:
    """Returns the command that prints these metrics of every kernel of a program as a table."""
    options = ["--csv", "--page", "raw", "--clock-control", "none", "--cache-control", "none"]
    return [str(ncu), *options, "--metrics", ",".join(metrics), *program]


def parse_raw_page(text: str) -> tuple[KernelCounters, ...]:
    """Parses the output of ``ncu --csv --page raw``; returns no launches if it contains no table."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    head = next((number for number, row in enumerate(rows) if row and row[0] == _FIRST_COLUMN), None)
    if head is None or len(rows) < head + 2:
        return ()
    names, units = rows[head], rows[head + 1]
    kernel = names.index(_KERNEL_COLUMN)
    found = []
    for row in rows[head + 2 :]:
        values = {
            name: number
            for name, text in zip(names, row, strict=False)
            if "__" in name and (number := _number(text)) is not None
        }
        kept = {name: unit for name, unit in zip(names, units, strict=False) if name in values}
        found.append(KernelCounters(row[kernel], values, kept))
    return tuple(found)


def trouble_in(text: str) -> str:
    """Returns the first error line of ncu's output, shortened."""
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    complaint = next((line for line in lines if "ERR" in line or "rror" in line), lines[-1] if lines else "no output")
    return " ".join(complaint.split())[:200]


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
