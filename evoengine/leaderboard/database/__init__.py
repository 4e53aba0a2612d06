"""The database of a leaderboard: connections, versions, and files of unknown origin; SQLite and PostgreSQL."""

PUBLIC_MODULES = (
    "connection",
    "server_url",
)
"""Modules and packages that other packages import."""
