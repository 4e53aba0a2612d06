"""Parsers of JSON and TOML, file reading and zlib decompression with bounds, for content of unknown origin.

The parsers of the standard library accept what later code cannot handle: thousands of nested lists, numbers of any
length, NaN, keys that occur twice. Each function raises :class:`BoundsError` instead, a ``ValueError`` with the reason
in one line, which the caller turns into the error of its format.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import zlib
from pathlib import Path
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 64
"""Maximum depth of nested lists and tables; the formats of EvoEngine need less than 10."""
MAX_CONTAINERS: Final = 1 << 22
"""Maximum number of lists and tables; an empty one takes 64 bytes of memory, and two or three of its text."""
MAX_VALUES: Final = 1 << 24
"""Maximum number of values in lists and tables; each takes some 50 bytes of memory, and two of its text."""
MAX_TEXT_BYTES: Final = 1 << 20
"""Maximum size of a file that people write: settings, search spaces, workloads."""
MAX_INT: Final = 2**63 - 1
"""Largest absolute value of an integer."""

_SHOWN: Final = 200
"""Characters of a parser's message that are kept."""
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_LONG_NUMBER: Final = re.compile(r"[0-9]{18}|[eE]\+?[0-9]{3}")
"""A number that may leave the range of 64-bit integers or doubles."""
_ODD_ESCAPE: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
"""Escape of NUL, or of a surrogate, which stands for no character unless it is part of a pair."""
_LONGEST_INT: Final = len(str(MAX_INT)) + 1
_LONG_KEY: Final = re.compile(
    rf"""(?:^|[\[{{,])[ \t]*+(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}""",
    re.ASCII | re.MULTILINE,
)
"""Dotted TOML key that nests too deeply; tomllib needs quadratic time for it."""


class BoundsError(ValueError):
    """Content that cannot be parsed within the bounds; the message is the reason, in one line."""


def read_bounded(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Reads a file of limited size.

    Raises:
        OSError: The file cannot be read.
        BoundsError: It is larger.
    """
    with path.open("rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise BoundsError(f"is larger than {_size(most_bytes)}")
    return content


def decode_text(content: bytes) -> str:
    """Decodes UTF-8, with or without a byte-order mark.

    Raises:
        BoundsError: The content is not UTF-8, or contains NUL.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BoundsError("is not UTF-8 text") from None
    if "\0" in text:
        raise BoundsError("contains NUL characters")
    return text


def parse_json(content: str | bytes, *, finite: bool = True, any_text: bool = False) -> Any:
    """Parses JSON.

    Args:
        content: Text, or its UTF-8 encoding.
        finite: Whether to refuse NaN, infinities and integers beyond 64 bits. Otherwise NaN and infinities, which
            Python's encoder writes, stay, and such an integer becomes an infinity: for documents that are converted to
            a record afterwards, whose errors name the place.
        any_text: Whether texts may have NUL and halves of surrogate pairs, because every use of them escapes both.

    Raises:
        BoundsError: Malformed JSON, nesting deeper than :data:`MAX_DEPTH`, more than :data:`MAX_CONTAINERS` lists and
            tables or :data:`MAX_VALUES` values, an integer beyond 64 bits, a number that is not finite, a key that
            occurs twice, or a text with NUL or a lone surrogate.
    """
    text = _json_text(content) if isinstance(content, bytes) else content
    _check_json_depth(text)
    if text.count(",") > MAX_VALUES:  # those in texts too
        raise BoundsError(f"has more than {MAX_VALUES:,} values")
    hooks: dict[str, Any] = {"object_pairs_hook": _distinct}
    if finite:
        hooks["parse_constant"] = _refuse_constant
    if _LONG_NUMBER.search(text):
        bounded = {"parse_int": _bounded_int, "parse_float": _finite_float}
        hooks |= bounded if finite else {"parse_int": _int_or_infinity}
    try:
        parsed = json.loads(text, **hooks)
    except BoundsError:
        raise
    except (ValueError, RecursionError) as error:
        raise BoundsError(f"is not JSON: {_one_line(error)}") from None
    if not any_text and _ODD_ESCAPE.search(text):
        _check_values(parsed)
    return parsed


def parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML.

    Raises:
        tomllib.TOMLDecodeError: Malformed TOML.
        BoundsError: Content beyond the bounds of :func:`parse_json`.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise BoundsError(f"is larger than {_size(MAX_TEXT_BYTES)}")
    if _LONG_KEY.search(text):
        raise BoundsError(f"is nested deeper than {MAX_DEPTH} levels")
    try:
        parsed = tomllib.loads(text)
    except RecursionError:
        raise BoundsError(f"is nested deeper than {MAX_DEPTH} levels") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's limit on the digits of a number
        raise BoundsError("has an integer beyond 64 bits") from None
    _check_values(parsed)
    return parsed


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        OSError: The file cannot be read.
        tomllib.TOMLDecodeError: Malformed TOML.
        BoundsError: It is larger than :data:`MAX_TEXT_BYTES`, no UTF-8 text, or as for :func:`parse_toml`.
    """
    return parse_toml(decode_text(read_bounded(path)))


def inflate(data: bytes, most_bytes: int, dictionary: bytes = b"") -> bytes:
    """Decompresses zlib data.

    Args:
        data: One complete zlib stream.
        most_bytes: Maximum size after decompression.
        dictionary: Preset dictionary; empty for none.

    Raises:
        BoundsError: The data is damaged, incomplete, followed by other bytes, or unpacks to more.
    """
    unpacker = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, most_bytes + 1)
    except (zlib.error, TypeError) as error:  # TypeError: a text or number in the place of a blob
        raise BoundsError(f"is not zlib data: {_one_line(error)}") from None
    if len(unpacked) > most_bytes:
        raise BoundsError(f"unpacks to more than {_size(most_bytes)}")
    if not unpacker.eof or unpacker.unused_data:
        raise BoundsError("is not one complete zlib stream")
    return unpacked


def _json_text(content: bytes) -> str:
    try:
        return decode_text(content)
    except BoundsError as error:
        raise BoundsError(f"is not JSON: it {error}") from None


def _check_json_depth(text: str) -> None:
    brackets = text.count("[") + text.count("{")
    if brackets <= MAX_DEPTH:
        return
    if brackets > MAX_CONTAINERS:
        raise BoundsError(f"has more than {MAX_CONTAINERS:,} lists and tables")
    depth = 0
    for found in _BRACKET.finditer(text):
        bracket = found[0]
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BoundsError(f"is nested deeper than {MAX_DEPTH} levels")
        elif bracket in "]}":
            depth -= 1


def _check_values(content: object) -> None:
    """Checks depth, numbers and texts of parsed content, without recursion."""
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        for value in level:
            _check_value(value)
        level = [item for value in level for item in _children(value)]
        if not level:
            return
    raise BoundsError(f"is nested deeper than {MAX_DEPTH} levels")


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _check_value(value: object) -> None:
    if isinstance(value, int) and abs(value) > MAX_INT:
        raise BoundsError("has an integer beyond 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise BoundsError(f"has the number {value}: only finite ones are allowed")
    if isinstance(value, str) and ("\0" in value or not (value.isascii() or _is_encodable(value))):
        raise BoundsError("has a text with NUL or half a surrogate pair")


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BoundsError(f"has the key {twice[:40]!a} twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise BoundsError(f"has the number {name}, which JSON lacks")


def _bounded_int(text: str) -> int:
    if len(text) > _LONGEST_INT or abs(number := int(text)) > MAX_INT:
        raise BoundsError("has an integer beyond 64 bits")
    return number


def _int_or_infinity(text: str) -> float:
    try:
        return _bounded_int(text)
    except BoundsError:
        return -math.inf if text.startswith("-") else math.inf


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BoundsError("has a number that is not finite")
    return number


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:_SHOWN]
