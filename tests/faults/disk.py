"""Where a leaderboard has no room to grow: a small file system of its own, or a limit on the size of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_WIDE: Final = "64m"
_LIMIT: Final = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)"


class SmallDisk:
    """A folder whose room can be taken away and given back; use it in a ``with`` block.

    Where this process may mount one, the folder is a tmpfs, which is full when it is full: SQLite gets ENOSPC.
    Elsewhere the files of a search are limited in size: it gets EFBIG.

    Args:
        folder: empty.
        mount: try to mount.
    """

    def __init__(self, folder: Path, *, mount: bool = True) -> None:
        self.folder = folder
        self.mounted = mount and os.geteuid() == 0 and self._mount("-t", "tmpfs", "-o", f"size={_WIDE}", "tmpfs")

    @property
    def kind(self) -> str:
        """What it is, for a report."""
        return "a tmpfs that was full" if self.mounted else "a limit on the size of files"

    def shrink(self, room_bytes: int) -> list[str]:
        """Leaves so much room besides what is there; returns the command under which a search must run."""
        sizes = [file.stat().st_size for file in self.folder.iterdir()]
        if not self.mounted:
            limit = str(max(sizes) + room_bytes)
            return [sys.executable, "-c", f"{_LIMIT}; os.execv(sys.argv[2], sys.argv[2:])", limit]
        if not self._mount("-o", f"remount,size={sum(sizes) + room_bytes}"):
            raise OSError(f"{self.folder} cannot be made smaller")
        return []

    def grow(self) -> None:
        """Gives the room back."""
        if self.mounted and not self._mount("-o", f"remount,size={_WIDE}"):
            raise OSError(f"{self.folder} cannot be made larger")

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
