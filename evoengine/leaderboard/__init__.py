"""SQLite store of all evaluations, their ranking and the champions."""

PUBLIC_MODULES = ("codec", "connection", "imports", "lineage", "pareto", "records", "store")
"""Modules and packages that other packages import."""
