"""Imports and runs the scripts of ``scripts/measure``."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.cli.calling import environment
from tests.warm import WarmPython

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "scripts" / "measure"


def load(name: str) -> ModuleType:
    """Imports a script as a module."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


Run = Callable[..., subprocess.CompletedProcess[str]]
"""``run("script.py", *words, folder=ROOT)`` runs a script in a new process."""


def runner(warm: WarmPython, cache: Path) -> Run:
    """Returns a function that runs scripts without their slow imports."""

    def run(script: str, *words: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        done = warm.run(str(FOLDER / script), [*map(str, words)], folder, environment(cache))
        return subprocess.CompletedProcess([script, *map(str, words)], done.code, done.out, done.err)

    return run
