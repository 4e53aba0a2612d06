"""Search-space files: loader, expressions, constraints and conditions."""

PUBLIC_MODULES = ("conditions", "expression", "loader", "rules")
"""Modules and packages that other packages import."""
