"""Moves between configs: mutation, neighbourhood moves of the evolutionary search, pairs that differ in one tunable."""

PUBLIC_MODULES = ("neighbourhood", "tunable_pairs")
"""Modules and packages that other packages import."""
