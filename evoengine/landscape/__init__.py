"""Recorded search spaces: the outcome of every config, or of a large sample, on one device."""

PUBLIC_MODULES = ("columns", "definition", "file", "landscape", "merging", "noise", "packing", "synthetic")
"""Modules and packages that other packages import."""
