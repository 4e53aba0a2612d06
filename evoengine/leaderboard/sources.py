"""Sources of kernels: a template's text is stored once, the prologue that a config sets is stored per source.

A rendered kernel begins with a prologue, ``struct Cfg`` with the config's values; the text after it depends on few
tunables or none. That second part, the body, is one row of ``evo_templates``, found by its SHA-256. Prologues of one
body differ in some lines, so each is compressed with the body's first prologue as preset dictionary (zlib, RFC 1950).
Joining the two parts gives the source byte for byte.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects.sqlite import insert

from evoengine.documents.bounds import inflate
from evoengine.leaderboard.codec import decoding
from evoengine.leaderboard.schema import SOURCES, TEMPLATES

_PROLOGUE_END: Final = b"\n};\n"
"""End of ``struct Cfg``. Any cut is correct; this one makes the bodies of a family equal."""

MOST_BYTES: Final = 1 << 23
"""Maximum size of each part of a source; those of the packaged families have less than 200 KiB."""

_ADD_TEMPLATE: Final = insert(TEMPLATES).on_conflict_do_nothing()
_ADD_SOURCE: Final = insert(SOURCES).on_conflict_do_nothing()
_DICTIONARY: Final = select(TEMPLATES.c.prologue_zlib).where(TEMPLATES.c.body_hash == bindparam("body"))
_PARTS: Final = (
    select(TEMPLATES.c.prologue_zlib, SOURCES.c.prologue_zlib, TEMPLATES.c.body_zlib)
    .join(TEMPLATES, TEMPLATES.c.body_hash == SOURCES.c.body_hash)
    .where(SOURCES.c.source_hash == bindparam("source"))
)


class SourceWriter:
    """Adds sources to one file, and remembers the dictionaries of the bodies that the file has."""

    def __init__(self) -> None:
        self._dictionaries: dict[str, bytes] = {}

    def add(self, connection: Connection, source_hash: str, text: str) -> Callable[[], None]:
        """Stores a source unless the file has it.

        Args:
            connection: Connection in a transaction that writes.
            source_hash: Key of the source.
            text: The source.

        Returns:
            Function to call after the commit: only then may later sources rely on the body's row.
        """
        prologue, body = split_source(text.encode())
        body_hash = hashlib.sha256(body).hexdigest()
        dictionary = self._dictionaries.get(body_hash)
        if dictionary is None:
            dictionary = _stored_dictionary(connection, body_hash, prologue, body)
        packer = zlib.compressobj(zdict=dictionary)
        packed = packer.compress(prologue) + packer.flush()
        values = {"source_hash": source_hash, "body_hash": body_hash, "prologue_zlib": packed}
        connection.execute(_ADD_SOURCE, values)
        return lambda: self._dictionaries.update({body_hash: dictionary})


def split_source(text: bytes) -> tuple[bytes, bytes]:
    """Cuts a source into prologue and body; without a ``struct Cfg`` all of it is body."""
    end = text.find(_PROLOGUE_END)
    cut = 0 if end < 0 else end + len(_PROLOGUE_END)
    return text[:cut], text[cut:]


def source_text(connection: Connection, source_hash: str) -> str:
    """Returns a stored source, empty if the file has none under this key.

    Raises:
        MalformedDataError: The stored data is damaged, or unpacks to more than :data:`MOST_BYTES`.
    """
    parts = connection.execute(_PARTS, {"source": source_hash}).one_or_none()
    if parts is None:
        return ""
    dictionary, prologue, body = parts
    with decoding(f"source {source_hash}"):
        first = inflate(dictionary, MOST_BYTES)
        return (inflate(prologue, MOST_BYTES, first) + inflate(body, MOST_BYTES)).decode()


def _stored_dictionary(connection: Connection, body_hash: str, prologue: bytes, body: bytes) -> bytes:
    """Returns the dictionary of a body; adds the body with this prologue as dictionary if the file lacks it."""
    known = connection.execute(_DICTIONARY, {"body": body_hash}).scalar_one_or_none()
    if known is not None:
        with decoding(f"template {body_hash}"):
            return inflate(known, MOST_BYTES)
    values = {"body_hash": body_hash, "prologue_zlib": zlib.compress(prologue), "body_zlib": zlib.compress(body)}
    connection.execute(_ADD_TEMPLATE, values)
    return prologue
