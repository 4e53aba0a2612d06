"""The time that is stored."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Now in UTC, without a zone: SQLite keeps none, and every stored time is UTC."""
    return datetime.now(UTC).replace(tzinfo=None)
