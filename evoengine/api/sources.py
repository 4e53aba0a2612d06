"""Sources of kernels: the argument, ``EVOENGINE_LEADERBOARD``, ``./evoengine.lock``, ``./leaderboard.db``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.api.lockfile import LOCK_SUFFIX, read_lockfile
from evoengine.api.rows import KernelRow, leaderboard_rows
from evoengine.errors import StoreError
from evoengine.leaderboard.database.connection import database_name
from evoengine.leaderboard.database.server_url import is_server
from evoengine.leaderboard.store import Leaderboard

LEADERBOARD_VARIABLE: Final = "EVOENGINE_LEADERBOARD"
"""Environment variable with the path of a leaderboard or lockfile."""
LOCKFILE: Final = "evoengine.lock"
LEADERBOARD: Final = "leaderboard.db"


@dataclass(frozen=True)
class KernelSource:
    """File with kernels."""

    path: Path
    locked: bool
    """Whether the file is a lockfile, whose kernels must be built identically."""

    def rows(self, gpu: str | None = None) -> list[KernelRow]:
        """Reads the kernels.

        Args:
            gpu: Name of the GPU; None for all GPUs.

        Raises:
            UsageError: The file cannot be read.
        """
        if self.locked:
            return [row for row in read_lockfile(self.path) if gpu in (None, row.gpu)]
        with Leaderboard(f"sqlite:///{self.path}", create=False) as board:
            return leaderboard_rows(board, gpu)


def find_source(
    argument: str = "", environment: Mapping[str, str] = os.environ, folder: Path | None = None
) -> KernelSource | None:
    """Returns the first existing source: argument, environment variable, lockfile of the folder, its leaderboard.

    Args:
        argument: Path of a leaderboard or a lockfile (``.lock``); empty for none.
        environment: Environment variables.
        folder: Folder to search; None for the working directory.

    Raises:
        StoreError: The argument or the environment variable names a missing file.
    """
    for name, text in (("leaderboard", argument), (LEADERBOARD_VARIABLE, environment.get(LEADERBOARD_VARIABLE, ""))):
        if is_server(text):
            raise StoreError(
                f"{name} is {database_name(text)}, and kernels are read from files: 'evoengine db copy' makes one"
            )
        if text:
            path = Path(text.removeprefix("sqlite:///"))
            if not _is_file(path):
                raise StoreError(f"{name} is {text}: no such file: give the path of a leaderboard or lockfile")
            return KernelSource(path, path.suffix == LOCK_SUFFIX)
    here = folder or Path()
    for path in (here / LOCKFILE, here / LEADERBOARD):
        if path.is_file():
            return KernelSource(path, path.suffix == LOCK_SUFFIX)
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, for example
        return False
