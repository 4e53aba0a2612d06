"""A folder with limited space for a leaderboard: a small file system, or a limit on file sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_FULL_SIZE: Final = "64m"
_LIMIT: Final = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)"


class SmallDisk:
    """A folder whose free space can be reduced and restored; a context manager.

    If this process may mount file systems, the folder is a tmpfs, and SQLite fails with ENOSPC. Otherwise the size of a
    search's files is limited, and SQLite fails with EFBIG.

    Args:
        folder: Empty folder.
        mount: Whether to try to mount a tmpfs.
    """

    def __init__(self, folder: Path, *, mount: bool = True) -> None:
        self.folder = folder
        self.mounted = mount and os.geteuid() == 0 and self._mount("-t", "tmpfs", "-o", f"size={_FULL_SIZE}", "tmpfs")

    @property
    def kind(self) -> str:
        """Description for a report."""
        return "a tmpfs that was full" if self.mounted else "a limit on the size of files"

    def shrink(self, free_bytes: int) -> list[str]:
        """Leaves `free_bytes` beside the existing files; returns the prefix of the search's command."""
        sizes = [file.stat().st_size for file in self.folder.iterdir()]
        if not self.mounted:
            limit = str(max(sizes) + free_bytes)
            return [sys.executable, "-c", f"{_LIMIT}; os.execv(sys.argv[2], sys.argv[2:])", limit]
        if not self._mount("-o", f"remount,size={sum(sizes) + free_bytes}"):
            raise OSError(f"{self.folder} cannot reduce the size of the file system")
        return []

    def grow(self) -> None:
        """Restores the free space."""
        if self.mounted and not self._mount("-o", f"remount,size={_FULL_SIZE}"):
            raise OSError(f"{self.folder} cannot restore the size of the file system")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)

    def _mount(self, *options: str) -> bool:
        done = subprocess.run(["mount", *options, str(self.folder)], capture_output=True, check=False)
        return done.returncode == 0
