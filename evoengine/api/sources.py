"""Where kernels are looked for: the argument, ``EVOENGINE_LEADERBOARD``, a lockfile, ``./leaderboard.db``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.api.lockfile import LOCK_SUFFIX, read_lockfile
from evoengine.api.rows import KernelRow, leaderboard_rows
from evoengine.errors import StoreError
from evoengine.leaderboard.store import Leaderboard

LEADERBOARD_VARIABLE: Final = "EVOENGINE_LEADERBOARD"
"""Environment variable that names a leaderboard or a lockfile."""
LOCKFILE: Final = "evoengine.lock"
LEADERBOARD: Final = "leaderboard.db"


@dataclass(frozen=True)
class KernelSource:
    """A file that kernels come from."""

    path: Path
    locked: bool
    """A lockfile: what it names must be exactly what is built here."""

    def rows(self, gpu: str | None = None) -> list[KernelRow]:
        """The kernels in it.

        Args:
            gpu: only of this GPU; None for all.

        Raises:
            UsageError: the file cannot be read.
        """
        if self.locked:
            return [row for row in read_lockfile(self.path) if gpu in (None, row.gpu)]
        with Leaderboard(f"sqlite:///{self.path}", create=False) as board:
            return leaderboard_rows(board, gpu)


def find_source(
    argument: str = "", environment: Mapping[str, str] = os.environ, folder: Path | None = None
) -> KernelSource | None:
    """The first that is there of: the argument, the environment's, the folder's lockfile, the folder's leaderboard.

    Args:
        argument: a leaderboard, or a lockfile (its name ends in ``.lock``); empty for none.
        environment: of the process.
        folder: None for the working directory.

    Raises:
        StoreError: the argument or the environment names a file that is not there.
    """
    for name, text in (("leaderboard", argument), (LEADERBOARD_VARIABLE, environment.get(LEADERBOARD_VARIABLE, ""))):
        if text:
            path = Path(text.removeprefix("sqlite:///"))
            if not path.is_file():
                raise StoreError(f"{name} is {text}, where there is no file: name a leaderboard or a lockfile")
            return KernelSource(path, path.suffix == LOCK_SUFFIX)
    here = folder or Path()
    for path in (here / LOCKFILE, here / LEADERBOARD):
        if path.is_file():
            return KernelSource(path, path.suffix == LOCK_SUFFIX)
    return None
