"""Checks of the tools that compiling needs, for ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.errors import EvoEngineError, MissingDependencyError, UsageError
from evoengine.kernel.compile.nvrtc import (
    ANY_HEADER,
    INSTALL_HEADERS,
    INSTALL_NVRTC,
    header_dirs,
    nvrtc_version,
    supported_archs,
)
from evoengine.space.data_dirs import data_dirs


@dataclass(frozen=True)
class Probe:
    """Result of one check of this machine."""

    name: str
    ok: bool
    detail: str
    """Version or path that was found, or the problem."""
    fix: str = ""
    """Command that solves the problem; empty if there is none."""


def probe_nvrtc() -> Probe:
    """Checks that NVRTC loads; reports its version and architectures."""
    try:
        archs = supported_archs()
        return Probe("NVRTC", True, f"{nvrtc_version()}, sm_{min(archs)} to sm_{max(archs)}")
    except MissingDependencyError as error:
        return Probe("NVRTC", False, str(error).partition(": ")[0], INSTALL_NVRTC)
    except EvoEngineError as error:
        return Probe("NVRTC", False, str(error), INSTALL_NVRTC)


def probe_headers() -> Probe:
    """Checks that the CUDA headers are installed; only families that include some need them."""
    try:
        return Probe("CUDA headers", True, ", ".join(map(str, header_dirs((ANY_HEADER, "mma.h")))))
    except MissingDependencyError as error:
        return Probe("CUDA headers", False, str(error).partition(": ")[0], INSTALL_HEADERS)


def probe_templates() -> Probe:
    """Checks that the templates shipped with EvoEngine are installed."""
    try:
        return Probe("templates", True, " over ".join(map(str, data_dirs("templates"))))
    except UsageError as error:
        return Probe("templates", False, str(error), "python -m pip install --force-reinstall evoengine")
