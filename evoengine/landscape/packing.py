"""Compressed JSON files: reading and writing."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from pathlib import Path
from typing import Any, Final

from evoengine.documents.bounds import BoundsError, parse_json, read_bounded
from evoengine.errors import LandscapeError

MOST_BYTES: Final = 2**28
"""Largest accepted size after decompression; a million configs need less."""

_MOST_XZ_MEMORY: Final = 2**28
"""Memory of the decompressor; xz's highest preset needs a quarter."""
_XZ: Final = b"\xfd7zXZ\x00"
_GZIP: Final = b"\x1f\x8b"


def read_json(path: Path | str) -> dict[str, Any]:
    """Reads a JSON object from a file that may be compressed with xz or gzip.

    Raises:
        LandscapeError: The file cannot be read, is damaged, or does not hold a JSON object.
    """
    file = str(path)
    try:
        document = parse_json(_unpacked(read_bounded(Path(path), MOST_BYTES), file), finite=False)
    except OSError as error:
        raise LandscapeError(file, "", f"cannot be read: {error.strerror}") from None
    except BoundsError as error:
        raise LandscapeError(file, "", f"{error}; give JSON, plain or compressed with xz or gzip") from None
    if not isinstance(document, dict):
        raise LandscapeError(file, "", "is not a JSON object")
    return document


def json_text(document: dict[str, Any]) -> str:
    """Returns JSON without whitespace, keys in insertion order."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def packed(text: str) -> bytes:
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def _unpacked(content: bytes, file: str) -> bytes:
    if not content.startswith((_XZ, _GZIP)):
        return content
    try:
        text = _unxz(content) if content.startswith(_XZ) else _gunzip(content)
    except (lzma.LZMAError, zlib.error, EOFError, OSError, MemoryError) as error:
        raise LandscapeError(file, "", f"is damaged: {error}") from None
    if len(text) > MOST_BYTES:
        raise LandscapeError(file, "", f"unpacks to more than {MOST_BYTES >> 20} MiB")
    return text


def _unxz(content: bytes) -> bytes:
    """Unpacks one xz stream or several, at most one byte more than :data:`MOST_BYTES`.

    Raises:
        lzma.LZMAError: The content is damaged, or needs a larger dictionary.
        EOFError: It is incomplete.
    """
    unpacked = b""
    while content and len(unpacked) <= MOST_BYTES:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ_MEMORY)
        unpacked += unpacker.decompress(content, MOST_BYTES + 1 - len(unpacked))
        if not unpacker.eof and len(unpacked) <= MOST_BYTES:
            raise EOFError("it ends before the end-of-stream marker")
        content = unpacker.unused_data.lstrip(b"\0")  # stream padding
    return unpacked


def _gunzip(content: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        return stream.read(MOST_BYTES + 1)
