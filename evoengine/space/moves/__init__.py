"""Moves between configs: mutation of tunables, and the neighbourhood moves of the evolutionary search."""

PUBLIC_MODULES = ("neighbourhood",)
"""Modules and packages that other packages import."""
