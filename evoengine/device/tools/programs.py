"""Finds the programs of a CUDA toolkit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DEFAULT_HOME: Final = "/usr/local/cuda"


def find_program(name: str, environment: Mapping[str, str]) -> Path | None:
    """Finds a program on PATH or in the ``bin`` of CUDA's folder; None if it is not installed."""
    homes = (environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), _DEFAULT_HOME)
    folders = [environment.get("PATH", ""), *(str(Path(home) / "bin") for home in homes if home)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    return None if found is None else Path(found)
