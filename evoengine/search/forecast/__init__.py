"""Choice of configs by forecast: what a search tries first, and candidates for when the first times are known."""

PUBLIC_MODULES = ("choice", "decision_set")
"""Modules and packages that other packages import."""
