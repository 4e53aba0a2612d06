"""Parsing of PTX text and static analysis: control flow, execution pipes, dependencies."""

PUBLIC_MODULES = ("dependency_analysis", "pipes")
"""Modules and packages that other packages import."""
