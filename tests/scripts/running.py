"""Imports and runs the scripts of ``scripts/measure``."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "scripts" / "measure"


def load(name: str) -> ModuleType:
    """Imports a script as a module."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def run(script: str, *words: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a script in a new process."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(FOLDER / script), *map(str, words)]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
