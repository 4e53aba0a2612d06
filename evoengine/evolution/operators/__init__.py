"""Operators that need no model: random edits, recorded patches, crossover, swaps of regions, configs, the parent."""

PUBLIC_MODULES = ()
"""Modules and packages that other packages import."""
