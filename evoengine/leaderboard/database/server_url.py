"""Addresses of PostgreSQL databases: parsing, and names without credentials."""

from __future__ import annotations

from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from evoengine.errors import StoreError

DRIVER: Final = "postgresql+psycopg"
_EXAMPLE: Final = f"{DRIVER}://USER@HOST/DATABASE"
_SCHEMES: Final = ("postgresql", "postgres", DRIVER)


def is_server(text: str) -> bool:
    """Whether a ``--db`` value is the address of a server, valid or not."""
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.partition("+")[0].lower() in ("postgresql", "postgres")


def server_url(text: str) -> URL:
    """Parses the address of a server; its query parameters are those of libpq.

    Raises:
        StoreError: The address is malformed; the message does not repeat it, since it may hold a password.
    """
    scheme = text.partition("://")[0]
    if scheme.lower() not in _SCHEMES:
        raise StoreError(f"'{scheme}' is not a known driver of PostgreSQL: give {_EXAMPLE}")
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise StoreError(
            f"the address of the PostgreSQL server is malformed: give {_EXAMPLE}, with %40 for @ and %2F for / in names"
        ) from None
    if not url.database:
        raise StoreError(f"the address of the PostgreSQL server names no database: give {_EXAMPLE}")
    return url.set(drivername=DRIVER)


def server_name(text: str) -> str:
    """Returns the address without user name, password and parameters, for messages and files."""
    try:
        url = server_url(text)
    except StoreError:
        return f"{DRIVER}://…"
    host = url.host or url.query.get("host") or ""
    return (
        URL.create(DRIVER, host=None, port=None, database=url.database)
        .render_as_string()
        .replace(":///", f"://{host if isinstance(host, str) else host[0]}{f':{url.port}' if url.port else ''}/")
    )
