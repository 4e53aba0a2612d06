"""Compressed JSON files: reading and writing."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from pathlib import Path
from typing import Any, Final

from evoengine.errors import LandscapeError

MOST_BYTES: Final = 2**28
"""Largest accepted size after decompression; a million configs need less."""

_XZ: Final = b"\xfd7zXZ\x00"
_GZIP: Final = b"\x1f\x8b"


def read_json(path: Path | str) -> dict[str, Any]:
    """Reads a JSON object from a file that may be compressed with xz or gzip.

    Raises:
        LandscapeError: The file cannot be read, is damaged, or does not hold a JSON object.
    """
    file = str(path)
    try:
        packed = Path(path).read_bytes()
    except OSError as error:
        raise LandscapeError(file, "", f"cannot be read: {error.strerror}") from None
    try:
        document = json.loads(_unpacked(packed, file))
    except UnicodeDecodeError:
        raise LandscapeError(file, "", "is not JSON, plain or compressed with xz or gzip") from None
    except (ValueError, RecursionError) as error:  # ValueError: malformed JSON, or a number with thousands of digits
        raise LandscapeError(file, "", f"is not JSON: {error}") from None
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
        with _opened(content) as stream:
            text = stream.read(MOST_BYTES + 1)
    except (lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise LandscapeError(file, "", f"is damaged: {error}") from None
    if len(text) > MOST_BYTES:
        raise LandscapeError(file, "", f"unpacks to more than {MOST_BYTES >> 20} MiB")
    return text


def _opened(content: bytes) -> lzma.LZMAFile | gzip.GzipFile:
    stream = io.BytesIO(content)
    return lzma.LZMAFile(stream) if content.startswith(_XZ) else gzip.GzipFile(fileobj=stream)
