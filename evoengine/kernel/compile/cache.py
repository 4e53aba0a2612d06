"""A content-addressed cache of compilations on disk, shared by processes.

One file per entry: a checksum, then the zlib-compressed parts. Files are written under a temporary name and renamed, so
a reader sees a whole entry or none; an entry that does not check is treated as absent and is overwritten.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evoengine import __version__

_MAGIC: Final = b"EVO1"
_LENGTH: Final = struct.Struct("<Q")
_LOG: Final = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/evoengine/<version>``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "evoengine" / __version__


class DiskCache:
    """Maps a key, which is a file name, to a tuple of byte strings."""

    def __init__(self, folder: Path | None) -> None:
        """Opens a cache; None makes one that holds nothing."""
        self._folder = folder

    def get(self, key: str) -> tuple[bytes, ...] | None:
        """The parts that were stored under a key; None when there is no sound entry."""
        if self._folder is None:
            return None
        try:
            return _unpack(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None

    def put(self, key: str, parts: Sequence[bytes]) -> None:
        """Stores an entry. A folder that cannot be written switches the cache off, with one warning."""
        if self._folder is None:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, _pack(parts))
        except OSError as error:
            _LOG.warning("compile cache is off: %s: %s", self._folder, error.strerror or error)
            self._folder = None

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / key[:2] / key


def _write_atomically(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _pack(parts: Sequence[bytes]) -> bytes:
    body = zlib.compress(b"".join(_LENGTH.pack(len(part)) + part for part in parts), 1)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> tuple[bytes, ...]:
    start = len(_MAGIC) + hashlib.sha256().digest_size
    magic, checksum, packed = data[: len(_MAGIC)], data[len(_MAGIC) : start], data[start:]
    if magic != _MAGIC or hashlib.sha256(packed).digest() != checksum:
        raise ValueError("a damaged cache entry")
    body = zlib.decompress(packed)
    parts, at = [], 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        parts.append(body[at : at + length])
        at += length
    return tuple(parts)
