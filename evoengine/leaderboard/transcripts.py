"""Transcripts: every request to a language model with its answer, compressed, with tokens and price."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, insert, select

from evoengine.documents.bounds import inflate
from evoengine.leaderboard.codec import decoding
from evoengine.leaderboard.damage import DamageReport
from evoengine.leaderboard.records import utc_now
from evoengine.leaderboard.schema import TRANSCRIPTS

MOST_BYTES: Final = 1 << 24
"""Maximum size of a request or answer after decompression."""


_PLAIN: Final = (
    "purpose",
    "url",
    "model",
    "status",
    "reason",
    "prompt_tokens",
    "reply_tokens",
    "tokens_reported",
    "price",
    "seconds",
)
"""Columns that repeat a field."""


@dataclass(frozen=True)
class Transcript:
    """One request to a model with its answer. Neither holds the key of the endpoint."""

    purpose: str
    """Operator that sent the request."""
    url: str
    """Address of the endpoint."""
    model: str
    status: str
    """``ok``, ``http_429`` …, ``timeout``, ``no_connection``, ``unusable`` or ``interrupted``."""
    reason: str
    """Why there is no usable reply; empty for ``ok``."""
    request: bytes
    """JSON that was sent."""
    reply: bytes
    """Body that was received, as far as it was read."""
    prompt_tokens: int
    """Tokens that count against the budget: as reported, or else as reserved."""
    reply_tokens: int
    tokens_reported: bool
    """Whether the endpoint reported the tokens."""
    price: float | None
    """Price of the tokens; None if no price was given."""
    seconds: float

    @property
    def request_hash(self) -> str:
        return hashlib.sha256(self.request).hexdigest()

    @property
    def reply_hash(self) -> str:
        return hashlib.sha256(self.reply).hexdigest()


def add_transcript(connection: Connection, transcript: Transcript) -> int:
    """Stores a transcript; returns its id."""
    values = {name: getattr(transcript, name) for name in (*_PLAIN, "request_hash", "reply_hash")}
    values |= {
        "request_zlib": zlib.compress(transcript.request),
        "reply_zlib": zlib.compress(transcript.reply),
        "created_at": utc_now(),
    }
    return int(connection.execute(insert(TRANSCRIPTS).values(values).returning(TRANSCRIPTS.c.id)).scalar_one())


def find_transcripts(connection: Connection, damage: DamageReport) -> dict[int, Transcript]:
    """Returns all transcripts by id, oldest first, without damaged ones."""
    query = select(TRANSCRIPTS).order_by(TRANSCRIPTS.c.id)
    return dict(damage.sound(_transcript, connection.execute(query).mappings()))


def _transcript(row: Mapping[Any, Any]) -> tuple[int, Transcript]:
    with decoding(f"transcript {row['id']}"):
        columns = {name: row[name] for name in _PLAIN}
        unpacked = {name: inflate(row[f"{name}_zlib"], MOST_BYTES) for name in ("request", "reply")}
        found = msgspec.convert(columns | unpacked, Transcript, builtin_types=(bytes,))
        if (found.request_hash, found.reply_hash) != (row["request_hash"], row["reply_hash"]):
            raise ValueError("request or reply does not match its hash")
        return row["id"], found
