"""Bytes that a launch moves, by memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Bytes moved by a launch so far."""

    global_read_bytes: int = 0
    global_written_bytes: int = 0
    cp_async_bytes: int = 0
    """Bytes that cp.async and bulk copies read from global memory; not included in ``global_read_bytes``."""
    shared_read_bytes: int = 0
    shared_written_bytes: int = 0
    local_bytes: int = 0

    def count_read(self, space: str, size: int) -> None:
        """Counts bytes read from the state space ``shared`` or ``global``."""
        if space == "shared":
            self.shared_read_bytes += size
        else:
            self.global_read_bytes += size

    def count_write(self, space: str, size: int) -> None:
        """Counts bytes written to the state space ``shared`` or ``global``."""
        if space == "shared":
            self.shared_written_bytes += size
        else:
            self.global_written_bytes += size
