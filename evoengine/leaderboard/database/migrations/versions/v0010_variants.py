"""Version 10: variants of families, their parents, and the attempts of evolutions."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import Column, DateTime, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text

revision = "0010"
down_revision = "0009"

TABLES: Final = MetaData()

_SORTED_TEXT: Final = String().with_variant(String(collation="C"), "postgresql")

Table(
    "evo_variants",
    TABLES,
    Column("name", _SORTED_TEXT, primary_key=True),
    Column("family", String, nullable=False),
    Column("patch_json", Text, nullable=False),
    Column("operator", String, nullable=False),
    Column("origin", String, nullable=False),
    Column("created_at", DateTime, nullable=False),
)

Table(
    "evo_variant_parents",
    TABLES,
    Column("variant", ForeignKey("evo_variants.name"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("parent", String, nullable=False),
)

_ATTEMPTS: Final = Table(
    "evo_attempts",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("scope", String, nullable=False),
    Column("operator", String, nullable=False),
    Column("parent", String, nullable=False),
    Column("island", Integer, nullable=False),
    Column("stage", String, nullable=False),
    Column("summary", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("variant", String),
    Column("parent_us", Float),
    Column("best_us", Float),
    Column("row_id", Integer),
    Column("features_json", Text),
    Column("text_hash", String, nullable=False),
    Column("code_hash", String, nullable=False),
    Column("candidates", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("origin", String, nullable=False),
    Column("created_at", DateTime, nullable=False),
)
Index("evo_attempts_by_scope", _ATTEMPTS.c.scope, _ATTEMPTS.c.id)


def upgrade() -> None:
    """Creates the tables."""
    TABLES.create_all(op.get_bind(), checkfirst=False)
