"""Version 11: requests to language models with their answers."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, DateTime, Float, Integer, LargeBinary, String, Text

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "evo_transcripts",
        Column("id", Integer, primary_key=True),
        Column("purpose", String, nullable=False),
        Column("url", String, nullable=False),
        Column("model", String, nullable=False),
        Column("status", String, nullable=False),
        Column("reason", Text, nullable=False),
        Column("request_zlib", LargeBinary, nullable=False),
        Column("reply_zlib", LargeBinary, nullable=False),
        Column("request_hash", String(64), nullable=False),
        Column("reply_hash", String(64), nullable=False),
        Column("prompt_tokens", Integer, nullable=False),
        Column("reply_tokens", Integer, nullable=False),
        Column("tokens_reported", Boolean, nullable=False),
        Column("price", Float),
        Column("seconds", Float, nullable=False),
        Column("created_at", DateTime, nullable=False),
    )
