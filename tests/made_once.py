"""Folders that the processes of pytest-xdist make once and share."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder; the first process that asks for it fills it, and the others wait.

    Args:
        folder: Folder in one that all processes share.
        make: Fills an empty folder; where it fails, the next process tries again.
    """
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder
