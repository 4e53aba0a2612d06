"""NVIDIA's compute-sanitizer on one kernel: four tools, each over a launcher that runs that kernel alone.

The report's format is that of the tool's user guide: lines that begin with nine equals signs; a finding's first line is
not indented, its details are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from evoengine.device.launcher import LaunchJob
from evoengine.device.wire import encode

TOOLS: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
TOOL_LIMIT_S: Final = 60.0
"""One tool over one kernel takes seconds, most of them to start."""

_NAME: Final = "compute-sanitizer"
_DEFAULT_HOME: Final = "/usr/local/cuda"
_MARK: Final = "========="
_FOUND: Final = 97
"""Exit code that the tool is told to end with when it found something."""
_MAX_TEXT: Final = 300


@dataclass(frozen=True)
class ToolReport:
    """What one tool said of a kernel."""

    tool: str
    finding: str = ""
    """The first finding and where it is; empty when there is none."""
    trouble: str = ""
    """Why the tool could not look; empty when it could."""

    def __str__(self) -> str:
        return f"compute-sanitizer {self.tool}: {self.finding or self.trouble or 'nothing found'}"


def find_sanitizer(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The tool on PATH, or in the ``bin`` of CUDA's folder; None where it is not installed."""
    homes = (environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), _DEFAULT_HOME)
    folders = [environment.get("PATH", ""), *(str(Path(home) / "bin") for home in homes if home)]
    found = shutil.which(_NAME, path=os.pathsep.join(folders))
    return None if found is None else Path(found)


def sanitize(sanitizer: Path, job: LaunchJob) -> tuple[ToolReport, ...]:
    """Runs all tools over a kernel, at the same time: each takes seconds, and hardly any of them on the GPU.

    Args:
        sanitizer: the program.
        job: the kernel and its inputs.
    """
    with tempfile.TemporaryDirectory(prefix="evoengine-") as folder:
        file = Path(folder) / "job"
        file.write_bytes(encode(job))
        with ThreadPoolExecutor(len(TOOLS)) as threads:
            return tuple(threads.map(partial(_run, sanitizer, file), TOOLS))


def first_finding(report: str) -> str:
    """The first finding of a report with its first detail: where, or what else takes part; empty when there is none."""
    found = ""
    for line in report.splitlines():
        mark, _, text = line.partition(" ")
        detail = text[:1].isspace()
        if found:
            return _shortened(f"{found} {text}" if mark == _MARK and detail else found)
        if mark == _MARK and text.strip() and not detail and text.strip() != "COMPUTE-SANITIZER":
            found = "" if " SUMMARY:" in text else text
    return _shortened(found)


def _run(sanitizer: Path, job: Path, tool: str) -> ToolReport:
    command = [str(sanitizer), "--tool", tool, "--error-exitcode", str(_FOUND), "--print-limit", "1"]
    launcher = [sys.executable, "-m", "evoengine.device.launcher", str(job)]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [*command, *launcher],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TOOL_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return ToolReport(tool, trouble=f"not done within {TOOL_LIMIT_S:g} s")
    except OSError as error:
        return ToolReport(tool, trouble=_shortened(str(error)))
    finding = first_finding(done.stdout)
    if done.returncode == _FOUND and finding:
        return ToolReport(tool, finding)
    if done.returncode != 0:
        said = finding or done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return ToolReport(tool, trouble=_shortened(said))
    return ToolReport(tool)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}…"
