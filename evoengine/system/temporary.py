"""Temporary folders that are removed at the end of their process, or by the next start if the process was killed.

All are named ``evoengine-PID-START-RANDOM`` after their owner. The owner also holds a lock on its folder, so that a
process of another container, whose ids mean nothing here, does not lose a folder that is in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

from evoengine.system.processes import is_running, process_start

_NAME: Final = re.compile(r"evoengine-(\d+)-(\d+)-[a-z0-9_]+")


class TemporaryFolder:
    """A folder of this process; a context manager.

    Raises:
        OSError: The folder cannot be made.
    """

    def __init__(self) -> None:
        pid = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"evoengine-{pid}-{process_start(pid) or 0}-"))
        self._lock = _locked(self.path)

    def close(self) -> None:
        """Removes the folder; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sweep_temporary_folders() -> None:
    """Removes the folders of processes that have ended; folders of live owners and of other users stay."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        found = [entry for entry in entries if _NAME.fullmatch(entry.name)]
        for entry in found:
            with contextlib.suppress(OSError):
                _sweep(entry)


def _sweep(entry: os.DirEntry[str]) -> None:
    match = _NAME.fullmatch(entry.name)
    facts = entry.stat(follow_symlinks=False)
    if match is None or not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        return
    if is_running(int(match[1]), match[2]):
        return
    lock = _locked(Path(entry.path))
    if lock is not None:
        shutil.rmtree(entry.path, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int | None:
    """Locks a folder for the life of this process; None if another process holds the lock, or it cannot be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
