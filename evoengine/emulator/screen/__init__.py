"""Screen of PTX: what generated code may contain before anything executes it."""

PUBLIC_MODULES = ("records", "screen")
"""Modules and packages that other packages import."""
