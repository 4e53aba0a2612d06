"""Content-addressed compile cache on disk, shared by processes.

Each entry is one file: a checksum, then the zlib-compressed parts. Files are written under a temporary name in the
same folder and renamed, so a reader gets a complete entry or none, also on a network file system that several hosts
write to: of two writers the last one wins, with an equal entry. An entry with a wrong checksum counts as absent and is
overwritten.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evoengine import __version__
from evoengine.documents.bounds import inflate
from evoengine.errors import UsageError
from evoengine.system.user_folders import user_folder

CACHE_VARIABLE: Final = "EVOENGINE_CACHE"
"""Environment variable with the folder of the cache, which several hosts may share on a network file system."""
_MAGIC: Final = b"EVO1"
_MOST_BYTES: Final = 1 << 28
"""Maximum size of an entry after decompression; a kernel with its PTX and log needs about 1 MiB."""
_LENGTH: Final = struct.Struct("<Q")
_LOG: Final = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """Returns the cache folder of this version: on Linux ``$XDG_CACHE_HOME/evoengine/<version>``.

    :data:`CACHE_VARIABLE` names another folder. For a user without a home it is below a file, where nothing can be
    stored.

    Raises:
        UsageError: The variable names the home of a user that does not exist.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        try:
            return Path(chosen).expanduser().absolute() / __version__
        except RuntimeError:
            reason = "which is in no user's home: give another folder, or unset the variable"
            raise UsageError(f"{CACHE_VARIABLE} is {chosen}, {reason}") from None
    return (user_folder("cache") or Path(__file__)) / __version__


def usable_cache_dir() -> Path | None:
    """Returns the cache folder if it can be written; None otherwise, with one warning for all workers together."""
    folder = default_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _LOG.warning("compile cache is off: %s: %s", folder, error.strerror or error)
        return None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        _LOG.warning("compile cache is off: %s cannot be written", folder)
        return None
    return folder


class DiskCache:
    """Maps a key, which is a file name, to a tuple of byte strings.

    Args:
        folder: Folder of the cache; None stores nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, key: str) -> tuple[bytes, ...] | None:
        """Returns the parts stored under a key, or None if there is no valid entry."""
        if self._folder is None:
            return None
        try:
            return _unpack(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None

    def put(self, key: str, parts: Sequence[bytes]) -> None:
        """Stores an entry. A folder that cannot be written disables the cache with one warning."""
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
    name = path.with_name(f".{uuid.uuid4().hex}.tmp")  # unique among all hosts, and with the mode that the umask allows
    try:
        with name.open("xb") as file:
            file.write(data)
        name.replace(path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def _pack(parts: Sequence[bytes]) -> bytes:
    body = zlib.compress(b"".join(_LENGTH.pack(len(part)) + part for part in parts), 1)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> tuple[bytes, ...]:
    start = len(_MAGIC) + hashlib.sha256().digest_size
    magic, checksum, packed = data[: len(_MAGIC)], data[len(_MAGIC) : start], data[start:]
    if magic != _MAGIC or hashlib.sha256(packed).digest() != checksum:
        raise ValueError("a damaged cache entry")
    body = inflate(packed, _MOST_BYTES)
    parts, at = [], 0
    while at < len(body):
        end = at + _LENGTH.size
        length = int.from_bytes(body[at:end], "little")
        at = end + length
        if at > len(body):
            raise ValueError("a damaged cache entry")
        parts.append(body[end:at])
    return tuple(parts)
