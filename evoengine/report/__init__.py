"""Report of studies as a self-contained HTML page."""

PUBLIC_MODULES = ("facts", "page")
"""Modules and packages that other packages import."""
