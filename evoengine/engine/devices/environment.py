"""Requirements of a search on this machine, each with the command that fixes it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.bench.gpu_monitor import probe_nvml
from evoengine.engine.devices.gpus import Gpu, find_gpus
from evoengine.kernel.compile.toolchain_check import Probe, probe_headers, probe_nvrtc, probe_templates

_PACKAGE: Final = Path(__file__).parents[1]
_PIP: Final = "python -m pip install"
_MIN_PYTHON: Final = (3, 11)
_MIN_SQLITE: Final = (3, 31, 0)
BYTECODE: Final = "bytecode"
NO_GPU: Final = "no NVIDIA driver or no GPU"
GPU_FIX: Final = "install the NVIDIA driver, or use --device emulator"
_NEEDED: Final = ("Python", "NVRTC", "templates", "torch", "optuna", "SQLite")
"""Requirements on every device."""


@dataclass(frozen=True)
class EnvironmentReport:
    """State of all requirements."""

    probes: tuple[Probe, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of devices on which a search can run."""
        ok = {probe.name for probe in self.probes if probe.ok}
        if not ok.issuperset(_NEEDED):
            return ()
        return ("cuda", "emulator") if ok.issuperset(("GPU", "CuPy")) else ("emulator",)


def diagnose() -> EnvironmentReport:
    """Checks this machine."""
    gpus = find_gpus()
    gpu = gpus[0] if gpus else None
    return EnvironmentReport(
        (
            _python(),
            _bytecode(),
            probe_nvrtc(),
            probe_headers(),
            probe_templates(),
            _package("torch", "torch", f"{_PIP} torch"),
            _package("optuna", "optuna", f"{_PIP} 'optuna>=5,<6'"),
            _sqlite(),
            _gpu(gpus),
            _cupy(gpu),
            _nvml(gpu),
        )
    )


def _python() -> Probe:
    ok = sys.version_info >= _MIN_PYTHON
    fix = "" if ok else "install Python 3.11 or newer, then make a new virtual environment with it"
    return Probe("Python", ok, f"{platform.python_version()} ({sys.executable})", fix)


def _bytecode() -> Probe:
    """Without bytecode files Python compiles all modules, of the dependencies too, at each start."""
    if Path(importlib.util.cache_from_source(__file__)).exists():
        return Probe(BYTECODE, True, "written")
    if sys.dont_write_bytecode:
        detail = "PYTHONDONTWRITEBYTECODE is set; start-up is slower"
        return Probe(BYTECODE, False, detail, "unset PYTHONDONTWRITEBYTECODE, or start Python without -B")
    detail = "no bytecode files are written; start-up is slower"
    return Probe(BYTECODE, False, detail, f"{sys.executable} -m compileall -q {_PACKAGE}")


def _package(name: str, module: str, fix: str) -> Probe:
    if importlib.util.find_spec(module) is None:
        return Probe(name, False, "not installed", fix)
    return Probe(name, True, importlib.metadata.version(module))


def _sqlite() -> Probe:
    ok = sqlite3.sqlite_version_info >= _MIN_SQLITE
    fix = "" if ok else "use a Python that is built with SQLite 3.31 or newer"
    return Probe("SQLite", ok, sqlite3.sqlite_version, fix)


def _gpu(gpus: Sequence[Gpu]) -> Probe:
    """The first GPU, which a search uses by default, and the ``--device`` names of the others."""
    if not gpus:
        return Probe("GPU", False, NO_GPU, GPU_FIX)
    first = gpus[0]
    others = "".join(f"; cuda:{gpu.ordinal} is {gpu.name}" for gpu in gpus[1:])
    return Probe("GPU", True, f"{first.name}, sm_{first.arch}, driver for CUDA {first.driver}{others}")


def _cupy(gpu: Gpu | None) -> Probe:
    found = cupy_version()
    if found is not None:
        return Probe("CuPy", True, found)
    if gpu is None:
        return Probe("CuPy", False, "not installed; not needed without a GPU")
    return Probe("CuPy", False, "not installed", f"{_PIP} {cupy_wheel(gpu)}")


def _nvml(gpu: Gpu | None) -> Probe:
    """NVML, for clocks, temperature, power and throttling; a search also runs without it."""
    found = probe_nvml()
    if found.ok or gpu is not None:
        return found
    return Probe(found.name, False, "not needed without a GPU")


def cupy_version() -> str | None:
    """Version of the installed CuPy; None if there is none."""
    if importlib.util.find_spec("cupy") is None:
        return None
    for wheel in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            return f"{importlib.metadata.version(wheel)} ({wheel})"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def cupy_wheel(gpu: Gpu) -> str:
    """The CuPy wheel for a driver."""
    return "cupy-cuda13x" if gpu.driver_major >= 13 else "cupy-cuda12x"
