"""Runs NVIDIA's compute-sanitizer on one kernel: four tools, each with a launcher that runs only that kernel.

Most of the time passes before the kernel is needed: the tool and Python start, and the GPU is opened under the tool.
The launchers are therefore started in advance and wait for their kernel.

The report's format is described in the tool's user guide: lines begin with nine equals signs; the first line of a
finding is not indented, its details are.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.device.tools.launcher import COMMAND, LAUNCHED, LaunchJob, launcher_environment
from evoengine.device.tools.programs import find_program
from evoengine.device.workers.wire import encode
from evoengine.system.temporary import TemporaryFolder

TOOLS: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
TOOL_LIMIT_S: Final = 60.0
"""Time limit of one tool on one kernel, which takes seconds, mostly for its start."""

_MARK: Final = "========="
_FOUND: Final = 97
"""Exit code that the tool is configured to return when it has a finding."""
_MAX_TEXT: Final = 300


@dataclass(frozen=True)
class ToolReport:
    """Result of one tool on a kernel."""

    tool: str
    finding: str = ""
    """The first finding with its location; empty if there is none."""
    trouble: str = ""
    """Reason why the tool could not run; empty if it ran."""

    def __str__(self) -> str:
        return f"compute-sanitizer {self.tool}: {self.finding or self.trouble or 'nothing found'}"


def find_sanitizer(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Finds the tool on PATH or in the ``bin`` of CUDA's folder; None if it is not installed."""
    return find_program("compute-sanitizer", environment)


class Sanitizers:
    """All tools, each with its own launcher. They are started at once and wait for one kernel.

    Waiting launchers hold GPU memory but run nothing. They end with this object or with its process.

    Args:
        sanitizer: Path of compute-sanitizer.
    """

    def __init__(self, sanitizer: Path) -> None:
        self._tools = tuple(_Tool(sanitizer, name) for name in TOOLS)

    def run(self, job: LaunchJob) -> tuple[ToolReport, ...]:
        """Runs all tools on a kernel; may be called once.

        Args:
            job: Kernel and inputs.
        """
        with TemporaryFolder() as folder:
            file = folder / "job"
            file.write_bytes(encode(job))
            with ThreadPoolExecutor(len(TOOLS)) as threads:
                return tuple(threads.map(lambda tool: tool.run(file), self._tools))

    def close(self) -> None:
        """Ends the tools that still wait."""
        for tool in self._tools:
            tool.close()


def sanitize(sanitizer: Path, job: LaunchJob) -> tuple[ToolReport, ...]:
    """Starts all tools and runs them on a kernel.

    Args:
        sanitizer: Path of compute-sanitizer.
        job: Kernel and inputs.
    """
    with closing(Sanitizers(sanitizer)) as tools:
        return tools.run(job)


def first_finding(report: str) -> str:
    """Returns the first finding of a report with its first detail, such as its location; empty if there is none."""
    found = ""
    for line in report.splitlines():
        mark, _, text = line.partition(" ")
        detail = text[:1].isspace()
        if found:
            return _shortened(f"{found} {text}" if mark == _MARK and detail else found)
        if mark == _MARK and text.strip() and not detail and text.strip() != "COMPUTE-SANITIZER":
            found = "" if " SUMMARY:" in text else text
    return _shortened(found)


class _Tool:
    """One tool with its own launcher."""

    def __init__(self, sanitizer: Path, name: str) -> None:
        command = [str(sanitizer), "--tool", name, "--error-exitcode", str(_FOUND), "--print-limit", "1"]
        self._name = name
        self._refusal = ""
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [*command, *COMMAND],
                env=launcher_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._refusal = _shortened(str(error))

    def run(self, job: Path) -> ToolReport:
        """Sends the launcher its job and waits for the report."""
        process = self._process
        if process is None:
            return ToolReport(self._name, trouble=self._refusal)
        try:
            stdout, stderr = process.communicate(f"{job}\n", timeout=TOOL_LIMIT_S)
        except subprocess.TimeoutExpired:
            return ToolReport(self._name, trouble=f"not done within {TOOL_LIMIT_S:g} s")
        finding = first_finding(stdout)
        if process.returncode == _FOUND and finding:
            return ToolReport(self._name, finding)
        if process.returncode == 0 and LAUNCHED in stdout:
            return ToolReport(self._name)
        reason = finding or stderr.strip().rpartition("\n")[2] or f"exit code {process.returncode}"
        return ToolReport(self._name, trouble=_shortened(reason))

    def close(self) -> None:
        """Kills the tool if it still runs; its launcher ends when its input is closed."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):  # unwritten data has no reader
                    stream.close()


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}…"
