"""Files that verbs write for people."""

from __future__ import annotations

import os
from pathlib import Path

from evoengine.errors import UsageError


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes all or nothing: a full disk leaves no half a file behind.

    Raises:
        UsageError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
