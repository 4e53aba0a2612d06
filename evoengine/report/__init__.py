"""Report of studies as a self-contained HTML page."""

PUBLIC_MODULES = ("command", "facts", "page")
"""Modules and packages that other packages import."""
