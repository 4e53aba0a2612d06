"""Compressed JSON files: reading and writing."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import struct
import zipfile
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
_ZIP: Final = b"PK\x03\x04"
_ZIP_ENTRY: Final = b"PK\x01\x02"
"""Start of an entry of an archive's directory, of which Python makes an object ten times its size."""
_MOST_MEMBERS: Final = 1000
"""Maximum number of files of an archive, and of xz streams of a file."""
_BOUNDED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods of zip archives that Python unpacks in pieces; it unpacks bzip2 and LZMA whole, whatever their size."""
_CHUNK_BYTES: Final = 1 << 16
"""Bytes that are unpacked at once; at the end of each xz stream, the rest of them is copied."""
_NO_PADDING: Final = re.compile(rb"[^\0]")
"""First byte of a further xz stream: the padding between streams is zeros."""


def read_json(path: Path | str) -> dict[str, Any]:
    """Reads a JSON object from a file that may be compressed with xz or gzip.

    Raises:
        LandscapeError: The file cannot be read, is damaged, or does not hold a JSON object.
    """
    return json_object(read_content(path), path)


def json_object(content: bytes, path: Path | str) -> dict[str, Any]:
    """Parses the content of a file, which may be compressed with xz or gzip, as a JSON object.

    Raises:
        LandscapeError: The content is damaged, or is not a JSON object.
    """
    file = str(path)
    try:
        document = parse_json(_unpacked(content, file), finite=False)
    except BoundsError as error:
        raise LandscapeError(file, "", f"{error}; give JSON, plain or compressed with xz or gzip") from None
    if not isinstance(document, dict):
        raise LandscapeError(file, "", "is not a JSON object")
    return document


def read_unpacked(path: Path | str) -> bytes:
    """Reads a file that may be compressed with xz or gzip, or be the only one of a zip archive.

    Raises:
        LandscapeError: The file cannot be read, is damaged, or is larger than :data:`MOST_BYTES`.
    """
    return _unpacked(read_content(path), str(path))


def read_content(path: Path | str) -> bytes:
    """Reads a file as it is. A pipe yields its content once, so that a file is read once and not opened again.

    Raises:
        LandscapeError: The file cannot be read, or is larger than :data:`MOST_BYTES`.
    """
    try:
        return read_bounded(Path(path), MOST_BYTES)
    except OSError as error:
        raise LandscapeError(str(path), "", f"cannot be read: {error.strerror}") from None
    except BoundsError as error:
        raise LandscapeError(str(path), "", str(error)) from None


def json_text(document: dict[str, Any]) -> str:
    """Returns JSON without whitespace, keys in insertion order."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def packed(text: str) -> bytes:
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def _unpacked(content: bytes, file: str) -> bytes:
    unpack = {_XZ: _unxz, _GZIP: _gunzip, _ZIP: _unzip}
    known = next((start for start in unpack if content.startswith(start)), None)
    if known is None:
        return content
    try:
        text = unpack[known](content)
    except (lzma.LZMAError, zlib.error, zipfile.BadZipFile, EOFError, OSError, MemoryError) as error:
        raise LandscapeError(file, "", f"is damaged: {error}") from None
    except BoundsError as error:
        raise LandscapeError(file, "", str(error)) from None
    except (ValueError, ArithmeticError, LookupError, struct.error) as error:  # of zipfile, for impossible numbers
        raise LandscapeError(file, "", f"is damaged: {error}") from None
    except (NotImplementedError, RuntimeError) as error:  # a method of compression, or a password
        raise LandscapeError(file, "", f"cannot be unpacked: {error}") from None
    if len(text) > MOST_BYTES:
        raise LandscapeError(file, "", f"unpacks to more than {MOST_BYTES >> 20} MiB")
    return text


def _unxz(content: bytes) -> bytes:
    """Unpacks one xz stream or several, at most one byte more than :data:`MOST_BYTES`.

    Raises:
        lzma.LZMAError: The content is damaged, or needs a larger dictionary.
        EOFError: It is incomplete.
        BoundsError: It has too many streams.
    """
    unpacked, start = bytearray(), 0
    for _ in range(_MOST_MEMBERS):
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ_MEMORY)
        while not unpacker.eof and len(unpacked) <= MOST_BYTES:
            chunk = content[start : start + _CHUNK_BYTES]
            if not chunk:
                raise EOFError("it ends before the end-of-stream marker")
            unpacked += unpacker.decompress(chunk, MOST_BYTES + 1 - len(unpacked))
            start += len(chunk)
        following = _NO_PADDING.search(content, start - len(unpacker.unused_data))
        if following is None or len(unpacked) > MOST_BYTES:
            return bytes(unpacked)
        start = following.start()
    raise BoundsError(f"has more than {_MOST_MEMBERS:,} xz streams: pack it as one")


def _gunzip(content: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        return stream.read(MOST_BYTES + 1)


def _unzip(content: bytes) -> bytes:
    """Unpacks the only file of an archive; its size is bounded while it is unpacked, whatever the archive states.

    Raises:
        BoundsError: The archive has another number of files, or one whose size cannot be bounded.
        zipfile.BadZipFile: The archive is damaged.
    """
    if content.count(_ZIP_ENTRY) > _MOST_MEMBERS:
        raise BoundsError(f"is an archive of more than {_MOST_MEMBERS:,} files: unpack it and give one of them")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = [member for member in archive.infolist() if not member.is_dir()]
        if len(files) != 1:
            raise BoundsError(f"is an archive of {len(files)} files: unpack it and give one of them")
        if files[0].compress_type not in _BOUNDED:
            raise BoundsError("cannot be unpacked: its method is not deflate: unpack it and give the file")
        with archive.open(files[0]) as stream:
            return stream.read(MOST_BYTES + 1)
