"""A search on a Ray cluster: its nodes, the services on them, and a queue whose jobs survive the loss of hosts."""

PUBLIC_MODULES = (
    "layout",
    "process",
)
"""Modules and packages that other packages import."""
