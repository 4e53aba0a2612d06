"""The format of workers' answers: JSON and raw bytes, built into records only after every type was checked.

A worker has run unproven code, so its answers must not be pickles, which can execute code when they are loaded. They
are trees of plain values. The reader follows the annotations of the expected type along the tree and rejects any
mismatch. Bytes and long texts are sent beside the tree without encoding.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import struct
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from evoengine.documents.bounds import BoundsError, parse_json
from evoengine.errors import EvoEngineError

_LONG_TEXT: Final = 4096
"""Texts from this length on (sources, PTX) travel as bytes: escaping them would take longer than sending them."""
_BLOB: Final = "blob"
_WORD: Final = 8
_SCALARS: Final = frozenset((bool, int, float, str, types.NoneType))

_Builder = Callable[[Any, Sequence[bytes], str], Any]
"""Builds a value from a part of the tree, the bytes that it refers to, and the part's name in errors."""


class WireError(ValueError):
    """A message does not match the expected type; ``str(error)`` names the position."""


def encode(value: object) -> bytes:
    """Serialises a record.

    Args:
        value: None, bool, int, float, str, bytes, an enum, a NumPy scalar, or a dataclass, a mapping with text keys, a
            list or a tuple of such values.

    Returns:
        One message: the number of parts, their lengths, and the parts, which are the tree as JSON followed by the bytes
        that it refers to.

    Raises:
        WireError: The value contains another type.
    """
    blobs: list[bytes] = []
    tree = _plain(value, blobs)
    parts = [json.dumps(tree, separators=(",", ":")).encode(), *blobs]
    lengths = struct.pack(f"<{1 + len(parts)}Q", len(parts), *map(len, parts))
    return b"".join([lengths, *parts])


@dataclass(frozen=True)
class Message:
    """A message that was split into parts but not checked yet."""

    tree: Any
    """Plain JSON values."""
    blobs: tuple[bytes, ...]

    def build(self, kind: Any, tree: Any, place: str = "") -> Any:
        """Builds a record from a part of the tree.

        Args:
            kind: Expected type: a dataclass, an enum, ``tuple[X, ...]``, ``X | None`` and so on; ``object`` accepts any
                plain value.
            tree: Part of the tree.
            place: Name of the part in errors.

        Raises:
            WireError: The part does not match; nothing was built.
        """
        return _builder(kind)(tree, self.blobs, place)


def parse(data: bytes) -> Message:
    """Splits a message into its parts.

    Raises:
        WireError: The bytes are not a message.
    """
    count = struct.unpack_from("<Q", data)[0] if len(data) >= _WORD else 0
    start = _WORD * (1 + count)
    if count < 1 or start > len(data):
        raise WireError(f"{len(data)} bytes are not a message")
    lengths = struct.unpack_from(f"<{count}Q", data, _WORD)
    if start + sum(lengths) != len(data):
        raise WireError(f"{len(data)} bytes are not a complete message")
    parts = []
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    try:
        return Message(parse_json(parts[0], finite=False), tuple(parts[1:]))
    except BoundsError as error:
        raise WireError(str(error)) from error


def decode(kind: Any, data: bytes) -> Any:
    """Inverse of :func:`encode`.

    Raises:
        WireError: The message does not match ``kind``; nothing was built.
    """
    message = parse(data)
    return message.build(kind, message.tree)


def _plain(value: object, blobs: list[bytes]) -> object:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) < _LONG_TEXT else _aside(value.encode(), blobs)
    if isinstance(value, bytes):
        return _aside(value, blobs)
    if isinstance(value, list | tuple):
        return [_plain(item, blobs) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, blobs) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), blobs) for field in dataclasses.fields(value)}
    scalar = getattr(value, "item", None)
    if scalar is not None and getattr(value, "ndim", None) == 0:  # a NumPy scalar, recognised without importing NumPy
        return _plain(scalar(), blobs)
    raise WireError(f"a {type(value).__name__} cannot be sent")


def _aside(data: bytes, blobs: list[bytes]) -> dict[str, int]:
    blobs.append(data)
    return {_BLOB: len(blobs) - 1}


@functools.cache
def _builder(kind: Any) -> _Builder:
    """Returns the function that builds values of a type: a type is examined once, not with every value."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is object:
        return _plain_value
    if origin in (typing.Union, types.UnionType):
        return _builder_of_one(arguments)
    if origin is typing.Literal:
        return partial(_literal, kind)
    if origin is tuple:
        return partial(_tuple, arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return partial(_mapping, arguments[1])
    if dataclasses.is_dataclass(kind):
        return partial(_record, kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return partial(_enum, kind)
    return partial(_scalar, kind)


def _builder_of_one(kinds: tuple[Any, ...]) -> _Builder:
    """Returns the builder of a union: the first of its types that matches."""
    if not _SCALARS.issuperset(kinds):
        return partial(_one_of, kinds)
    exact = _SCALARS.intersection(kinds) - {float}  # an int may become one

    def build(tree: Any, blobs: Sequence[bytes], place: str) -> Any:
        return tree if type(tree) in exact else _one_of(kinds, tree, blobs, place)

    return build


def _plain_value(tree: Any, _blobs: Sequence[bytes], _place: str) -> Any:
    return tree


def _literal(kind: Any, tree: Any, _blobs: Sequence[bytes], place: str) -> Any:
    if tree in typing.get_args(kind):
        return tree
    raise _misfit(kind, tree, place)


def _enum(kind: Any, tree: Any, _blobs: Sequence[bytes], place: str) -> Any:
    try:
        return kind(tree)
    except ValueError as error:
        raise _misfit(kind, tree, place) from error


def _scalar(kind: Any, tree: Any, blobs: Sequence[bytes], place: str) -> Any:
    if type(tree) is kind and kind in _SCALARS:
        return tree
    if kind in (str, bytes) and isinstance(tree, dict):
        data = _blob(tree, blobs, place)
        try:
            return data if kind is bytes else data.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"{place or 'the answer'}: not UTF-8") from error
    if kind is float and type(tree) is int:
        return float(tree)
    if kind is None and tree is None:
        return None
    raise _misfit(kind, tree, place)


def _blob(tree: dict[str, Any], blobs: Sequence[bytes], place: str) -> bytes:
    index = tree.get(_BLOB)
    if len(tree) != 1 or type(index) is not int or not 0 <= index < len(blobs):
        raise WireError(f"{place or 'the answer'}: refers to bytes that are missing")
    return blobs[index]


def _one_of(kinds: tuple[Any, ...], tree: Any, blobs: Sequence[bytes], place: str) -> Any:
    failures = []
    for kind in kinds:
        try:
            return _builder(kind)(tree, blobs, place)
        except WireError as error:
            failures.append(error)
    raise failures[0]


def _tuple(kinds: tuple[Any, ...], tree: Any, blobs: Sequence[bytes], place: str) -> Any:
    if not isinstance(tree, list):
        raise _misfit(tuple, tree, place)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(tree)
    if len(tree) != len(kinds):
        raise WireError(f"{place or 'the answer'}: {len(tree)} values where {len(kinds)} are expected")
    pairs = enumerate(zip(kinds, tree, strict=True))
    return tuple([_builder(kind)(item, blobs, f"{place}[{index}]") for index, (kind, item) in pairs])


def _mapping(kind: Any, tree: Any, blobs: Sequence[bytes], place: str) -> Any:
    if not isinstance(tree, dict):
        raise _misfit(dict, tree, place)
    build = _builder(kind)
    return {key: build(item, blobs, f"{place}[{key!r}]") for key, item in tree.items()}


def _record(kind: Any, tree: Any, blobs: Sequence[bytes], place: str) -> Any:
    builders = _fields(kind)
    if not isinstance(tree, dict) or tree.keys() != builders.keys():
        raise _misfit(kind, tree, place)
    inside = f"{place}." if place else ""
    values = {name: build(tree[name], blobs, f"{inside}{name}") for name, build in builders.items()}
    try:
        return kind(**values)
    except (EvoEngineError, ValueError, TypeError) as error:  # raised by the record's own checks
        raise WireError(f"{place or kind.__name__}: {error}") from error


@functools.cache
def _fields(kind: Any) -> dict[str, _Builder]:
    hints = typing.get_type_hints(kind)
    return {field.name: _builder(hints[field.name]) for field in dataclasses.fields(kind)}


def _misfit(kind: Any, tree: Any, place: str) -> WireError:
    name = getattr(kind, "__name__", str(kind))
    shown = repr(tree)
    return WireError(f"{place or 'the answer'}: {shown if len(shown) <= 40 else shown[:40] + '…'} is not a {name}")
