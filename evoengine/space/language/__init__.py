"""Search-space files: loader, expressions, constraints and conditions."""

PUBLIC_MODULES = ("expression", "loader", "rules")
"""Modules and packages that other packages import."""
