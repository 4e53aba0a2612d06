"""Language of search-space files: expressions, constraints and conditions."""

PUBLIC_MODULES = ("conditions", "expression", "rules")
"""Modules and packages that other packages import."""
